package simtest

import (
	"maps"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestContextMemory checks that a context uses device memory, and that its memory is
// reported per process.
func TestContextMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	h := newHost(t, "sms=8,mem=64MiB,context=10MiB")
	told := func(want map[int]gpu.Bytes) {
		t.Helper()
		if got, err := simgpu.ProcessMemory(h.dir, 0); err != nil || !maps.Equal(got, want) {
			t.Errorf("processes occupy %v, %v; expected %v", got, err, want)
		}
	}
	told(map[int]gpu.Bytes{})
	a := h.start("", "hold", "31457280") // 30 MiB
	a.expect("held")
	told(map[int]gpu.Bytes{a.cmd.Process.Pid: 40 * mib})
	b := h.start("", "hold", "15728640") // 15 MiB: would fit without the contexts
	b.expect("oom")
	told(map[int]gpu.Bytes{a.cmd.Process.Pid: 40 * mib, b.cmd.Process.Pid: 10 * mib})
	b.end()
	c := h.start("", "hold", "14680064") // 14 MiB: exactly the remaining memory
	c.expect("held")
	d := h.command("", "several", "hold", "1")
	if out, err := run(d); err == nil {
		t.Errorf("a context on a full device: %s", out)
	}
	a.kill()
	told(map[int]gpu.Bytes{c.cmd.Process.Pid: 24 * mib})
	c.end()
	told(map[int]gpu.Bytes{})
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// TestExit checks that exit handlers registered after cuInit run before the driver
// ends.
func TestExit(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	out, err := run(h.command("", "exits"))
	if err != nil || strings.Count(out, "ok ") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}
