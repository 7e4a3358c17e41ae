package simtest

import (
	"fmt"
	"io"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestChurn runs processes that allocate memory of all kinds, and kills some of them.
// The memory in use never exceeds the device's, and none remains.
func TestChurn(t *testing.T) {
	t.Parallel()
	h := newHost(t, "sms=8,mem=96MiB,context=4MiB")
	var all []*process
	for i := range 4 {
		p := startCommand(t, h.command("", "churn", fmt.Sprint(i)))
		p.expect("ready")
		all = append(all, p)
	}
	for _, p := range all {
		if _, err := io.WriteString(p.stdin.(io.Writer), "\n"); err != nil {
			t.Fatal(err)
		}
		p.expect("churning")
	}
	for i := range 200 {
		used, err := simgpu.ProcessMemory(h.dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		for pid, n := range used { // each is measured at its own moment, so their sum has no bound
			if n < 4*gpu.MiB || n > 96*gpu.MiB {
				t.Fatalf("memory of process %d: got %v, want 4 to 96 MiB", pid, n)
			}
		}
		if i == 100 {
			all[0].kill()
			all[1].kill()
		}
	}
	for _, p := range all[2:] {
		p.end()
	}
	p := h.start("", "hold", fmt.Sprint(92<<20)) // all but the memory of its own context
	p.expect("held")
	p.end()
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestSharedMemoryOutlivesOwner checks that shared memory outlives its maker, and
// counts all the while.
func TestSharedMemoryOutlivesOwner(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	if out, err := run(h.command("", "heirs")); err != nil {
		t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
	}
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}
