package hooktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// told is what a process has told of its fault.
func (m *member) told() []wire.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.faults)
}

// faulty is a process whose kernel ends with that error, under a fake daemon that accepts
// Fault, or does not.
func faulty(t *testing.T, flags uint32, code int, args ...string) (*fake, *program, *member) {
	t.Helper()
	f := newFake(t)
	f.flags = flags
	f.listen()
	p := f.run(f.env(1), "check/sticky", append([]string{fmt.Sprint(code)}, args...)...)
	m := f.member(0)
	m.give()
	return f, p, m
}

// TestFault: the daemon is told once of the error that ends a process's use of CUDA, with
// the call that returned it first, also where the process ends at once.
func TestFault(t *testing.T) {
	t.Parallel()
	type row struct {
		code       int
		call, name string
	}
	var rows []row
	for _, code := range []int{226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 810, 911} {
		rows = append(rows, row{code, "cuStreamSynchronize", "cuStreamSynchronize"})
	}
	for _, call := range []string{"cuLaunchKernel", "cuGraphLaunch", "cuMemcpyDtoH", "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuCtxSynchronize",
		"cuCtxSynchronize_v2", "cuStreamSynchronize_ptsz", "cuEventSynchronize", "cuStreamQuery", "cuEventQuery"} {
		name, _, _ := strings.Cut(call, "_")
		rows = append(rows, row{719, call, name})
	}
	rows = append(rows, row{700, "none", "cuEventQuery"}) // the library's own
	for _, r := range rows {
		t.Run(fmt.Sprint(r.code, r.call), func(t *testing.T) {
			t.Parallel()
			f, p, m := faulty(t, wire.PageFaults, r.code, r.call)
			f.eventually("the daemon is told", func() bool { return len(m.told()) > 0 })
			if r.call == "none" {
				p.in.Close()
			}
			_ = p.wait()
			if got := m.told(); len(got) != 1 || got[0].Code != uint32(r.code) || got[0].Call.String() != r.name {
				t.Errorf("it was told %+v (%s), want %d from %s", got, got[0].Call, r.code, r.name)
			}
			if want := fmt.Sprintln(r.code); r.call != "none" && p.out.String() != want {
				t.Errorf("the program saw %q, want %q", p.out.String(), want)
			}
		})
	}
}

// TestNoFault: errors that are not sticky, and errors under a daemon that does not know
// Fault, are not told.
func TestNoFault(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		code  int
		flags uint32
	}{{1, wire.PageFaults}, {2, wire.PageFaults}, {46, wire.PageFaults}, {214, wire.PageFaults}, {701, wire.PageFaults}, {709, wire.PageFaults},
		{720, wire.PageFaults}, {801, wire.PageFaults}, {999, wire.PageFaults}, {700, 0}, {719, wire.PageEndings}} {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			t.Parallel()
			f, p, m := faulty(t, r.flags, r.code, "cuCtxSynchronize")
			_ = p.wait()
			f.eventually("its connection has ended", m.gone.Load)
			if got := m.told(); len(got) != 0 || p.out.String() != fmt.Sprintln(r.code) {
				t.Errorf("it was told %+v; the program saw %q", got, p.out.String())
			}
		})
	}
}

// TestFaultAgain: a daemon that is started again is told too, once.
func TestFaultAgain(t *testing.T) {
	t.Parallel()
	f, p, m := faulty(t, wire.PageFaults, 715, "cuCtxSynchronize", "wait")
	f.eventually("the daemon is told", func() bool { return len(m.told()) == 1 })
	f.die()
	f.listen()
	m = f.member(0)
	f.eventually("the next daemon is told", func() bool { return len(m.told()) > 0 })
	p.in.Close()
	_ = p.wait()
	if got := m.told(); len(got) != 1 || got[0].Code != 715 || got[0].Call.String() != "cuCtxSynchronize" {
		t.Errorf("it was told %+v", got)
	}
}
