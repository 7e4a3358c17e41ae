package hooktest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// kinds are the ways to get memory that the drivers have; each must be held to
// the limit, alone and together with all the others.
var kinds = []string{
	"plain", "pitch", "managed", "async", "async-thread", "async-free", "plain-free-async", "pool", "vmm",
	"array", "array3d", "mipmap", "graph",
}

var lifetimes = []string{
	"mapped-twice", "mapped-in-part", "mapped-in-a-row", "mapped-with-holes", "levels", "formats", "imported", "kept", "grows-too-much", "lets-go", "destroyed", "elsewhere", "siblings",
	"captured", "beside-a-capture", "graphs-in-turn", "graphs-destroyed",
}

// limited is the environment of an instance with that much memory.
func (h *host) limited(id string, mem gpu.Bytes) []string {
	h.t.Helper()
	slice := whole
	slice.Mem = mem
	return h.register(id, slice)
}

// TestMemoryKinds fills the limit in each way that there is to get memory, and
// in all of them together, to the last byte and no further.
func TestMemoryKinds(t *testing.T) {
	h := newHost(t)
	h.start()
	p := h.run(h.limited("kinds", 256*gpu.MiB), "check/kinds", "fill")
	if err := p.wait(); err != nil {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	for _, kind := range append(kinds, "mixed") {
		if !strings.Contains(p.out.String(), kind+": right\n") {
			t.Errorf("%s was not tried:\n%s", kind, p.out.String())
		}
	}
	h.eventually("nothing is left", func() bool { return len(h.rows()) == 0 })
}

// TestMemoryLifetimes follows memory whose end is not where it seems: mapped,
// pooled, imported.
func TestMemoryLifetimes(t *testing.T) {
	h := newHost(t)
	h.start()
	p := h.run(h.limited("lifetimes", 256*gpu.MiB), "check/lifetimes")
	if err := p.wait(); err != nil {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	for _, name := range lifetimes {
		if !strings.Contains(p.out.String(), name+": right\n") {
			t.Errorf("%s was not tried:\n%s", name, p.out.String())
		}
	}
}

// TestMemoryDevices gives an instance two GPUs, with a limit each.
func TestMemoryDevices(t *testing.T) {
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=count=2"}
	h.start()
	secret := preload.NewSecret()
	first := wire.Allocation{GPU: "sim:0", SMPct: 100, QuotaRequest: 1, QuotaLimit: 1, MemLimit: 256 * gpu.MiB}
	other := first
	other.GPU, other.MemLimit = "sim:1", 64*gpu.MiB
	_, err := h.client.Register(context.Background(), wire.Registration{
		Instance: "devices", Function: "devices", Secret: secret, Allocation: first, More: []wire.Allocation{other},
	})
	if err != nil {
		t.Fatal(err)
	}
	env := append(h.environ("devices", secret, whole), "CUDA_VISIBLE_DEVICES=0,1", "GFAAS_DEVICES=0,1")
	p := h.run(env, "check/lifetimes", "devices")
	if err := p.wait(); err != nil || p.out.String() != "devices: right\n" {
		t.Errorf("%v: %s", err, p.out.String())
	}
}

// TestMemoryOutside has a process of the instance hold memory, and have some
// that only the daemon sees: what its sibling gets is the rest.
func TestMemoryOutside(t *testing.T) {
	h := newHost(t)
	h.start()
	env := h.limited("outside", 256*gpu.MiB)
	other, err := tokentest.Dial(filepath.Join(tokend.ClientSocketDir(h.runDir), "token.sock"), "outside", value(env, "GFAAS_SECRET"), 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	atomic.StoreUint64(&other.Slot().MemForeign, 96<<20)
	p := h.run(env, "check/memory", "16", "1")
	if err := p.wait(); err != nil || p.out.String() != "128 of 256 MiB\n" {
		t.Errorf("%v: it got %s", err, p.out.String())
	}
}

// TestMemoryOfContext: what a process's context takes of the GPU is asked of the
// management library. It is shown, and counted where that is wanted.
func TestMemoryOfContext(t *testing.T) {
	for _, c := range []struct {
		flags []string
		used  gpu.Bytes
	}{{nil, 64 * gpu.MiB}, {[]string{"--count-context"}, 164 * gpu.MiB}} {
		h := newHost(t)
		h.flags = c.flags
		h.settings = []string{"GFAAS_SIM_GPU=mem=1GiB,context=100MiB", "GFAAS_SIM_DIR=" + filepath.Join(h.runDir, "sim")}
		h.start()
		env := h.limited("contexts", 256*gpu.MiB)
		h.says(h.run(env, "check/nvml", "handle", fmt.Sprint(int64(64*gpu.MiB))))
		h.eventually("its context is known", func() bool { row, _ := h.row("contexts"); return row.ContextMiB == 100 })
		if _, used, _, _ := h.says(h.launch(exec.Command("python3", "-c", python), env)); used != c.used {
			t.Errorf("%v: %v is used, want %v", c.flags, used, c.used)
		}
	}
}

// TestMemoryRefused: what the driver refuses to an instance for want of memory is counted,
// also once its process has ended; what would exceed the instance's own limit is not.
func TestMemoryRefused(t *testing.T) {
	h := newHost(t)
	h.start()
	refused := func(id string) (n uint64) {
		for _, g := range h.status().GPUs {
			for _, c := range g.Clients {
				if c.Instance == id {
					n += c.MemRefused
				}
			}
		}
		return n
	}
	ask := func(id, what, shape string, limit gpu.Bytes) {
		t.Helper()
		slice := whole
		slice.Mem = limit
		p := h.run(append(h.register(id, slice), "GFAAS_SIM_GPU="+shape, "GFAAS_SIM_DIR="+filepath.Join(h.runDir, id)), "check/refused", what)
		if err := p.wait(); err != nil || p.out.String() != "2\n" {
			t.Errorf("%s: %v: it got %q, %s", id, err, p.out.String(), p.errout.String())
		}
	}
	for _, what := range []string{"plain", "pitch", "async", "pool", "vmm"} {
		ask("full-"+what, what, "mem=1GiB", 0)
		h.eventually("it counts: "+what, func() bool { return refused("full-"+what) == 1 })
		ask("limit-"+what, what, "mem=1GiB", 256*gpu.MiB)
		if n := refused("limit-" + what); n != 0 {
			t.Errorf("%s beyond the limit: %d", what, n)
		}
	}
	for _, what := range []string{"context", "primary"} {
		ask("full-"+what, what, "mem=1GiB,context=2GiB", 0)
		h.eventually("it counts: "+what, func() bool { return refused("full-"+what) == 1 })
	}
}

// value is that of a variable in an environment.
func value(env []string, name string) string {
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			return v
		}
	}
	return ""
}

// TestMemoryLent has an instance map more of another process's memory than it may
// have of its own: it is shown, and not counted.
func TestMemoryLent(t *testing.T) {
	h := newHost(t)
	h.start()
	socket := filepath.Join(h.runDir, "lent.sock")
	keeper := h.run(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim")),
		"check/lent", socket, "96")
	h.eventually("the keeper listens", func() bool { h.alive(keeper, "keeper"); return keeper.out.String() != "" })
	p := h.run(h.limited("lent", 64*gpu.MiB), "check/lent", socket)
	for _, step := range []struct {
		says     string
		imported float64
	}{{"mapped", 96}, {"gone", 0}} {
		h.eventually(step.says, func() bool { h.alive(p, "lent"); return strings.HasSuffix(p.out.String(), step.says+"\n") })
		if row, there := h.row("lent"); !there || row.MemImportedMiB != step.imported || row.MemUsedMiB != 0 {
			t.Errorf("%s: %+v, want %v MiB imported", step.says, row, step.imported)
		}
		if _, err := p.in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestMemoryRace has threads of several processes of one instance take and give
// all kinds of memory at once: together they never hold more than the limit.
func TestMemoryRace(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, of := range [][2]string{{"1", "6"}, {"3", "2"}} {
		id := "race" + of[0]
		if err := h.run(h.limited(id, 256*gpu.MiB), "check/kinds", "race", of[0], of[1]).wait(); err != nil {
			t.Errorf("%s processes of %s threads: %v", of[0], of[1], err)
		}
	}
}

// TestMemoryPools has a pool destroyed while its last block is freed, and another
// one imported in its place: the one is this process's to count, the other not.
func TestMemoryPools(t *testing.T) {
	h := newHost(t)
	h.start()
	slice := whole
	slice.Mem = gpu.GiB
	p := h.run(h.register("pools", slice), "check/pools", "40000")
	h.eventually("it ends", p.over)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestOversubscribe runs two instances whose memory does not fit on the GPU
// together: each one's is moved to the host while it idles, and back.
func TestOversubscribe(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=sms=8,mem=384MiB"}
	h.start()
	var programs []*program
	for _, id := range []string{"one", "two"} {
		env := append(h.limited(id, 256*gpu.MiB), "GFAAS_OVERSUBSCRIBE=1")
		programs = append(programs, h.run(env, "check/swap", "240", "3"))
	}
	for _, p := range programs {
		if err := p.wait(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(p.out.String(), "out and in"); n != 3 {
			t.Errorf("want 3 rounds:\n%s", p.out.String())
		}
	}
}
