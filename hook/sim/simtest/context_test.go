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
	checkMemory := func(want map[int]gpu.Bytes) {
		t.Helper()
		if got, err := simgpu.ProcessMemory(h.dir, 0); err != nil || !maps.Equal(got, want) {
			t.Errorf("memory of the processes: got %v, %v; want %v", got, err, want)
		}
	}
	checkMemory(map[int]gpu.Bytes{})
	a := h.start("", "hold", "31457280") // 30 MiB
	a.expect("held")
	checkMemory(map[int]gpu.Bytes{a.cmd.Process.Pid: 40 * mib})
	b := h.start("", "hold", "15728640") // 15 MiB: would fit without the contexts
	b.expect("oom")
	checkMemory(map[int]gpu.Bytes{a.cmd.Process.Pid: 40 * mib, b.cmd.Process.Pid: 10 * mib})
	b.end()
	c := h.start("", "hold", "14680064") // 14 MiB: exactly the remaining memory
	c.expect("held")
	d := h.command("", "several", "hold", "1")
	if out, err := run(d); err == nil {
		t.Errorf("context on a full device: got success, want an error: %s", out)
	}
	a.kill()
	checkMemory(map[int]gpu.Bytes{c.cmd.Process.Pid: 24 * mib})
	c.end()
	checkMemory(map[int]gpu.Bytes{})
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestExit checks that exit handlers registered after cuInit run before the driver
// ends.
func TestExit(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	out, err := run(h.command("", "exits"))
	if err != nil || strings.Count(out, "ok ") != 3 {
		t.Errorf("exit handlers: got %v, want success and three handlers:\n%s", err, out)
	}
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}
