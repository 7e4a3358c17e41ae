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
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// kinds lists the ways to allocate memory that drivers have. Each must respect the
// limit, alone and mixed with the others.
var kinds = []string{
	"plain", "pitch", "managed", "async", "async-thread", "async-free", "plain-free-async", "pool", "vmm",
	"array", "array3d", "mipmap", "graph",
}

var lifetimes = []string{
	"mapped-twice", "mapped-in-part", "mapped-in-a-row", "mapped-with-holes", "levels", "formats", "imported", "kept", "grows-too-much", "lets-go", "destroyed", "elsewhere", "siblings",
	"captured", "beside-a-capture", "graphs-in-turn", "graphs-destroyed",
}

// limited registers an instance with a memory limit and returns its environment.
func (h *host) limited(id string, mem gpu.Bytes) []string {
	h.t.Helper()
	slice := whole
	slice.Mem = mem
	return h.register(id, slice)
}

// TestMemoryKinds fills the limit with each kind of memory and with all kinds mixed, up
// to the last byte and no further.
func TestMemoryKinds(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	p := h.run(h.limited("kinds", 256*gpu.MiB), "check/kinds", "fill")
	if err := p.wait(); err != nil {
		t.Fatalf("the program failed: %v\n%s", err, p.out.String())
	}
	for _, kind := range append(kinds, "mixed") {
		if !strings.Contains(p.out.String(), kind+": right\n") {
			t.Errorf("memory of kind %s: want the line \"right\", got\n%s", kind, p.out.String())
		}
	}
	h.eventually("the daemon has no client", func() bool { return len(h.rows()) == 0 })
}

// TestMemoryLifetimes follows memory that ends later than its free suggests: mapped,
// pooled or imported memory.
func TestMemoryLifetimes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	p := h.run(h.limited("lifetimes", 256*gpu.MiB), "check/lifetimes")
	if err := p.wait(); err != nil {
		t.Fatalf("the program failed: %v\n%s", err, p.out.String())
	}
	for _, name := range lifetimes {
		if !strings.Contains(p.out.String(), name+": right\n") {
			t.Errorf("lifetime %s: want the line \"right\", got\n%s", name, p.out.String())
		}
	}
}

// TestMemoryDevices gives an instance two GPUs, each with a limit.
func TestMemoryDevices(t *testing.T) {
	t.Parallel()
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
		t.Errorf("program on two GPUs: got %v with %q, want success with \"devices: right\"", err, p.out.String())
	}
}

// TestMemoryOutside lets a process of the instance hold memory, including memory that
// only the daemon sees. The sibling gets the remaining memory.
func TestMemoryOutside(t *testing.T) {
	t.Parallel()
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
		t.Errorf("memory beside a process with 128 MiB: got %v, %q; want 128 of 256 MiB", err, p.out.String())
	}
}

// TestMemoryOfContext checks that the daemon asks NVML for the memory of a process's
// context. The memory is shown, and counts with --count-context.
func TestMemoryOfContext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags []string
		used  gpu.Bytes
	}{{nil, 64 * gpu.MiB}, {[]string{"--count-context"}, 164 * gpu.MiB}} {
		h := newHost(t)
		h.flags = c.flags
		h.settings = []string{"GFAAS_SIM_GPU=mem=1GiB,context=100MiB", "GFAAS_SIM_DIR=" + filepath.Join(h.runDir, "sim")}
		h.start()
		env := h.limited("contexts", 256*gpu.MiB)
		h.readNVML(h.run(env, "check/nvml", "handle", fmt.Sprint(int64(64*gpu.MiB))))
		h.eventually("the daemon reports the memory of the context", func() bool { row, _ := h.row("contexts"); return row.ContextMiB == 100 })
		if _, used, _, _ := h.readNVML(h.launch(exec.Command("python3", "-c", python), env)); used != c.used {
			t.Errorf("used memory with the flags %v: got %v, want %v", c.flags, used, c.used)
		}
	}
}

// TestMemoryRefused checks that out-of-memory errors of the driver are counted, also
// after the process has ended. Allocations beyond the instance's own limit are not
// counted.
func TestMemoryRefused(t *testing.T) {
	t.Parallel()
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
	ask := func(id, kind, shape string, limit gpu.Bytes) {
		t.Helper()
		slice := whole
		slice.Mem = limit
		p := h.run(append(h.register(id, slice), "GFAAS_SIM_GPU="+shape, "GFAAS_SIM_DIR="+filepath.Join(h.runDir, id)), "check/refused", kind)
		if err := p.wait(); err != nil || p.out.String() != "2\n" {
			t.Errorf("%s: got %v with %q, want success with error 2: %s", id, err, p.out.String(), p.errout.String())
		}
	}
	for _, kind := range []string{"plain", "pitch", "async", "pool", "vmm"} {
		ask("full-"+kind, kind, "mem=1GiB", 0)
		h.eventually("the daemon counts the refused allocation of kind "+kind, func() bool { return refused("full-"+kind) == 1 })
		ask("limit-"+kind, kind, "mem=1GiB", 256*gpu.MiB)
		if n := refused("limit-" + kind); n != 0 {
			t.Errorf("refusals counted for %s beyond the slice's limit: got %d, want 0", kind, n)
		}
	}
	for _, kind := range []string{"context", "primary"} {
		ask("full-"+kind, kind, "mem=1GiB,context=2GiB", 0)
		h.eventually("the daemon counts the refused allocation of kind "+kind, func() bool { return refused("full-"+kind) == 1 })
	}
}

// value returns the value of a variable in an environment.
func value(env []string, name string) string {
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			return v
		}
	}
	return ""
}

// TestMemoryLent lets an instance map more of another process's memory than its own
// limit. This memory is shown, but not counted.
func TestMemoryLent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	socket := filepath.Join(h.runDir, "lent.sock")
	keeper := h.run(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim")),
		"check/lent", socket, "96")
	h.eventually("the lending process listens", func() bool { h.alive(keeper, "keeper"); return keeper.out.String() != "" })
	p := h.run(h.limited("lent", 64*gpu.MiB), "check/lent", socket)
	for _, step := range []struct {
		prints   string
		imported float64
	}{{"mapped", 96}, {"gone", 0}} {
		h.eventually("the program prints "+step.prints, func() bool { h.alive(p, "lent"); return strings.HasSuffix(p.out.String(), step.prints+"\n") })
		if row, known := h.row("lent"); !known || row.MemImportedMiB != step.imported || row.MemUsedMiB != 0 {
			t.Errorf("%s: got %+v, want %v MiB imported and 0 used", step.prints, row, step.imported)
		}
		if _, err := p.in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestMemoryRace lets threads of several processes of one instance allocate and free
// all kinds of memory at once. Their total never exceeds the limit.
func TestMemoryRace(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, of := range [][2]string{{"1", "6"}, {"3", "2"}} {
		id := "race" + of[0]
		if err := h.run(h.limited(id, 256*gpu.MiB), "check/kinds", "race", of[0], of[1]).wait(); err != nil {
			t.Errorf("%s processes of %s threads: got the error %v, want none", of[0], of[1], err)
		}
	}
}

// TestMemoryPools destroys a pool while its last block is freed, and imports another
// pool that may get the same address. The first pool counts for this process, the
// imported one does not.
func TestMemoryPools(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	slice := whole
	slice.Mem = gpu.GiB
	p := h.run(h.register("pools", slice), "check/pools", "40000")
	h.eventually("the program has ended", p.exited)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestSwapOrdered lets the daemon order the moves of an instance's memory, with and without a memory
// limit. The library moves nothing to the host by itself. An instance without a limit cannot allocate
// more than the GPU has.
func TestSwapOrdered(t *testing.T) {
	t.Parallel()
	const rounds = 3
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=sms=8,mem=512MiB"}
	h.start()
	swapper := tokend.Swapper{Client: h.client}
	for id, limit := range map[string]gpu.Bytes{"limited": 256 * gpu.MiB, "unlimited": 0} {
		t.Run(id, func(t *testing.T) {
			h := h.within(t)
			p := h.run(append(h.limited(id, limit), "GFAAS_OVERSUBSCRIBE=ordered"), "check/swap", "240", fmt.Sprint(rounds), "back")
			memory := func() (used, parked float64) {
				row, _ := h.row(id)
				return row.MemUsedMiB, row.MemParkedMiB
			}
			h.eventually("the memory is allocated", func() bool { used, _ := memory(); return used > 239 })
			for round := range rounds {
				// An order before the work of this round is undone by that work.
				h.eventually("the program sees its memory on the host", func() bool {
					return swapper.Park(t.Context(), id) == nil && strings.Count(p.out.String(), ": parked") > round
				})
				if used, parked := memory(); parked != used {
					t.Errorf("round %d: got %v of %v MiB on the host, want all", round, parked, used)
				}
				if err := swapper.Unpark(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			if err := p.wait(); err != nil {
				t.Error(err)
			}
		})
	}
	// An idle program keeps its memory on the GPU for longer than the time of the library's own rule.
	idle := h.run(append(h.limited("idle", 256*gpu.MiB), "GFAAS_OVERSUBSCRIBE=ordered"), "check/swap", "24", "1")
	h.eventually("the memory is allocated", func() bool { row, _ := h.row("idle"); return row.MemUsedMiB > 23 && row.State == "idle" })
	time.Sleep(700 * time.Millisecond)
	if row, _ := h.row("idle"); row.MemParkedMiB != 0 || strings.Contains(idle.out.String(), ": parked") {
		t.Errorf("memory of an idle program without an order: got %v MiB on the host, want 0", row.MemParkedMiB)
	}
}

// TestOversubscribe runs two instances whose memory does not fit on the GPU at the same
// time. The memory of an idle instance is moved to the host, and back.
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
		if n := strings.Count(p.out.String(), ": parked"); n != 3 {
			t.Errorf("want 3 rounds:\n%s", p.out.String())
		}
	}
}
