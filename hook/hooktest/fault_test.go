package hooktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// reportedFaults returns the faults that the process has reported.
func (m *member) reportedFaults() []wire.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.faults)
}

// startFaulty starts a process whose kernel ends with the given error, under a fake daemon
// that accepts Fault or does not, according to flags.
func startFaulty(t *testing.T, flags uint32, code int, args ...string) (*fake, *program, *member) {
	t.Helper()
	f := newFake(t)
	f.flags = flags
	f.listen()
	p := f.run(f.env(1), "check/sticky", append([]string{fmt.Sprint(code)}, args...)...)
	m := f.member(0)
	m.alwaysGrant()
	return f, p, m
}

// TestFault checks that the daemon gets one report of the error that ends a process's
// use of CUDA, with the call that returned it first, even if the process ends at once.
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
	rows = append(rows, row{700, "none", "cuEventQuery"}) // a call of the library itself
	for _, r := range rows {
		t.Run(fmt.Sprint(r.code, r.call), func(t *testing.T) {
			t.Parallel()
			f, p, m := startFaulty(t, wire.PageFaults, r.code, r.call)
			f.eventually("the process has reported the fault", func() bool { return len(m.reportedFaults()) > 0 })
			if r.call == "none" {
				p.in.Close()
			}
			_ = p.wait()
			if got := m.reportedFaults(); len(got) != 1 || got[0].Code != uint32(r.code) || got[0].Call.String() != r.name {
				t.Errorf("reported faults: got %+v, want one, error %d from %s", got, r.code, r.name)
			}
			if want := fmt.Sprintln(r.code); r.call != "none" && p.out.String() != want {
				t.Errorf("the program saw %q, want %q", p.out.String(), want)
			}
		})
	}
}

// TestNoFault checks that errors which are not sticky are not reported, nor any errors
// to a daemon that does not know Fault.
func TestNoFault(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		code  int
		flags uint32
	}{{1, wire.PageFaults}, {2, wire.PageFaults}, {46, wire.PageFaults}, {214, wire.PageFaults}, {701, wire.PageFaults}, {709, wire.PageFaults},
		{720, wire.PageFaults}, {801, wire.PageFaults}, {999, wire.PageFaults}, {700, 0}, {719, wire.PageEndings}} {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			t.Parallel()
			f, p, m := startFaulty(t, r.flags, r.code, "cuCtxSynchronize")
			_ = p.wait()
			f.eventually("the process's connection has ended", m.disconnected.Load)
			if got := m.reportedFaults(); len(got) != 0 || p.out.String() != fmt.Sprintln(r.code) {
				t.Errorf("reported faults: got %+v, and the program saw %q; want none, and the error %d", got, p.out.String(), r.code)
			}
		})
	}
}

// TestFaultAgain checks that a restarted daemon gets the report once, too.
func TestFaultAgain(t *testing.T) {
	t.Parallel()
	f, p, m := startFaulty(t, wire.PageFaults, 715, "cuCtxSynchronize", "wait")
	f.eventually("the process has reported the fault", func() bool { return len(m.reportedFaults()) == 1 })
	f.stop()
	f.listen()
	m = f.member(0)
	f.eventually("the process has reported the fault to the next daemon", func() bool { return len(m.reportedFaults()) > 0 })
	p.in.Close()
	_ = p.wait()
	if got := m.reportedFaults(); len(got) != 1 || got[0].Code != 715 || got[0].Call.String() != "cuCtxSynchronize" {
		t.Errorf("faults reported to the next daemon: got %+v, want one, error 715 from cuCtxSynchronize", got)
	}
}
