package hooktest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// launched waits until a program prints how many kernels it launched, and until the
// daemon has counted the same number.
func (h *host) launched(p *program, id string) {
	h.t.Helper()
	var n uint64
	h.eventually(id+" prints the number of its launches", func() bool {
		h.alive(p, id)
		_, err := fmt.Sscanf(p.out.String()[strings.LastIndex(p.out.String(), "launched")+1:], "aunched %d", &n)
		return err == nil
	})
	counted := func() (sum uint64) {
		for _, row := range h.rows() { // one per GPU
			if row.Instance == id {
				sum += row.Launches
			}
		}
		return sum
	}
	h.eventually("every launch is counted", func() bool { return counted() == n })
	if sum := counted(); sum != n {
		h.t.Errorf("counted launches of %s: got %d, want %d", id, sum, n)
	}
	if err := p.wait(); err != nil {
		h.t.Error(err)
	}
}

// TestStress lets two programs with many threads, streams and contexts compete for less
// than they want. They check their results themselves.
func TestStress(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	slice := whole
	slice.QuotaRequest, slice.QuotaLimit = 0.3, 0.45
	one := h.run(h.register("one", slice), "check/stress", "8", "4")
	two := h.run(h.register("two", slice), "check/stress", "3", "4")
	h.launched(one, "one")
	h.launched(two, "two")
	h.eventually("the daemon has no client", func() bool { return len(h.rows()) == 0 })
}

// TestFork runs programs of several processes, on one GPU and on two. Each process that
// uses a GPU is a client of that GPU; other children have no effect.
func TestFork(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, kind := range []string{"before", "exec", "quiet", "shell"} {
		t.Run(kind, func(t *testing.T) {
			h := h.within(t)
			h.launched(h.run(h.register(kind, whole), "check/fork", kind), kind)
		})
		t.Run(kind+" on two", func(t *testing.T) {
			h := h.within(t)
			id := kind + "-two"
			h.launched(h.run(h.registerTwo(id, whole), "check/fork", kind), id)
		})
	}
}

// TestShell starts two programs from a shell. They are one instance, share its memory
// and, together, stay within its quota.
func TestShell(t *testing.T) {
	h := newHost(t)
	h.start()
	slice := whole
	slice.Mem, slice.QuotaRequest, slice.QuotaLimit = 256<<20, 0.3, 0.3
	shell := func(script string) *program {
		script = strings.ReplaceAll(script, "CHECK", filepath.Join(build, "check"))
		return h.launch(exec.Command("sh", "-c", script), h.register("shell", slice))
	}
	met := filepath.Join(t.TempDir(), "met")
	p := shell(fmt.Sprintf("CHECK/memory 16 2 %s & CHECK/memory 16 2 %s & wait", met, met))
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for line := range strings.Lines(p.out.String()) {
		var got, total int
		if _, err := fmt.Sscanf(line, "%d of %d MiB", &got, &total); err != nil || total != 256 {
			t.Errorf("%q: %v; want a total of 256 MiB", line, err)
		}
		sum += got
	}
	if sum > 256 || sum < 256-16 {
		t.Errorf("memory of two processes: got %d MiB, want 240 to 256", sum)
	}

	h.eventually("the daemon has forgotten both processes", func() bool { return len(h.rows()) == 0 })
	a, b := h.account(), h.account()
	shell(fmt.Sprintf("CHECK/pace %s 1000 & CHECK/pace %s 1000 & wait", a.path, b.path))
	h.eventually("both processes have completed 20 kernels", func() bool { return a.completedKernels() > 20 && b.completedKernels() > 20 })
	h.checkQuota(slice.QuotaLimit, a, b)
	if rows := h.rows(); len(rows) != 2 {
		t.Errorf("clients of the daemon: got %+v, want two processes of one instance", rows)
	}
}
