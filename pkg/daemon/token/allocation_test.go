package token

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// spanning returns an instance on two GPUs with a different slice on each.
func spanning() wire.Registration {
	r := reg("a", share{sm: 60, request: 0.2, limit: 0.2})
	r.More = []wire.Allocation{{GPU: "sim:1", SMPct: 30, QuotaRequest: 0.4, QuotaLimit: 0.9, MemLimit: 2 << 30, Turns: []gpu.Turn{{From: 0.1, To: 0.5}}}}
	return r
}

func (s *server) dialDevice(id string, device uint32) (*tokentest.Client, error) {
	return tokentest.DialWith(s.clientSocket(), id, "secret of "+id, tokentest.Options{Device: device})
}

// TestAllocations checks that an instance has its own page, slice and lease on each of its GPUs.
func TestAllocations(t *testing.T) {
	s := serve(t, Config{})
	s.register(spanning())
	other := reg("b", share{sm: 60, request: 1, limit: 1})
	other.GPU = "sim:1"
	b := s.join(other)
	var a [2]*tokentest.Client
	for device := range a {
		var err error
		if a[device], err = s.dialDevice("a", uint32(device)); err != nil {
			t.Fatal(err)
		}
		defer a[device].Close()
	}
	if a[0].MemLimit() != 1<<30 || a[1].MemLimit() != 2<<30 || a[1].Welcome.MemLimit != 2<<30 {
		t.Errorf("memory limits of a on its GPUs: got %d and %d bytes in the pages, %d in the second welcome; want %d, %d and %[5]d", a[0].MemLimit(), a[1].MemLimit(), a[1].Welcome.MemLimit, 1<<30, uint64(2<<30))
	}
	s.lease(a[1])
	if a[0].Gate() != 0 {
		t.Error("gate on the first GPU, with a lease on the second: got open, want closed")
	}
	s.lease(a[0])
	s.lease(b) // 30 and 60 percent fit together
	a[1].Slot().MemUsed = 3 << 20
	st := s.status()
	if len(st.GPUs) != 2 || st.GPUs[0].GPU != "sim" || st.GPUs[1].GPU != "sim:1" || st.GPUs[0].SMRunningPct != 60 || st.GPUs[1].SMRunningPct != 90 {
		t.Fatalf("got status %+v, want 60%% of the SMs leased on sim and 90%% on sim:1", st)
	}
	first, second := st.GPUs[0].Clients[0], st.GPUs[1].Clients[0]
	if first.SMPct != 60 || first.MemUsedMiB != 0 || second.SMPct != 30 || second.QuotaLimit != 0.9 || second.MemUsedMiB != 3 {
		t.Errorf("got %+v on sim and %+v on sim:1, want 60%% and 30%% of the SMs, a quota limit of 0.9 on the second, and 3 MiB used there only", first, second)
	}
	select { // the budget on the first GPU ends after 20 ms; on the second no other client waits
	case <-a[0].Revoked:
	case <-time.After(patience):
		t.Fatalf("the lease on the first GPU was not revoked within %v, want it revoked after its budget of 20 ms", patience)
	}
	a[1].Close()
	eventually(t, "the process on one GPU has disconnected and the one on the other GPU is connected", func() bool {
		st := s.status()
		return st.GPUs[1].Clients[0].State == "absent" && st.GPUs[0].Clients[0].State == "draining"
	})
}

func TestNoSuchDevice(t *testing.T) {
	s := serve(t, Config{})
	s.register(spanning())
	for _, device := range []uint32{2, 1 << 31, 1<<32 - 1} {
		if _, err := s.dialDevice("a", device); !errors.Is(err, tokentest.ErrRefused) || !strings.Contains(err.Error(), "instance a has 2 GPU(s), and no device") {
			t.Errorf("hello for device %d: got %v, want a refusal: instance a has 2 GPU(s), and no device …", device, err)
		}
	}
}

func TestOneGPUHasOneName(t *testing.T) {
	s := serve(t, Config{})
	for name, more := range map[string]string{"x": "sim:0", "y": "sim:00", "z": "sim"} {
		r := reg(name, share{sm: 1, request: 1, limit: 1})
		r.More = []wire.Allocation{{GPU: more, SMPct: 1, QuotaRequest: 1, QuotaLimit: 1}}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if code, body := s.do("POST", "/v1/instances", string(text)); code != http.StatusBadRequest || !strings.Contains(body, "given twice") {
			t.Errorf("register on the GPUs sim and %s: got %d %s, want 400 and given twice", more, code, body)
		}
	}
	a, b := reg("a", share{sm: 1, request: 1, limit: 1}), reg("b", share{sm: 1, request: 1, limit: 1})
	b.GPU = "sim:0"
	s.register(a)
	s.register(b)
	if st := s.status(); len(st.GPUs) != 1 || len(st.GPUs[0].Clients) != 2 {
		t.Errorf("got status %+v, want 1 GPU with 2 clients", st)
	}
}

// TestAllocationsAreRestored checks that the next daemon restores all allocations, and that their GPUs
// change only while no process is connected.
func TestAllocationsAreRestored(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(spanning())
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{Socket: socket})
	if st := s.status(); len(st.GPUs) != 2 || st.GPUs[1].Clients[0].QuotaLimit != 0.9 {
		t.Fatalf("status of restored instances: got %+v, want 2 GPUs and a quota limit of 0.9 on the second", st)
	}
	c, err := s.dialDevice("a", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	moved, err := json.Marshal(reg("a", share{sm: 60, request: 0.2, limit: 0.2}))
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("POST", "/v1/instances", string(moved)); code != http.StatusConflict {
		t.Errorf("register on another GPU while a process is connected: got %d %s, want 409", code, body)
	}
	wider := spanning()
	wider.More[0].MemLimit = 5 << 30
	s.register(wider)
	if c.MemLimit() != 5<<30 {
		t.Errorf("memory limit in the page after the change: got %d bytes, want %d", c.MemLimit(), uint64(5<<30))
	}
	c.Close()
	eventually(t, "instance a is registered on the other GPU", func() bool {
		code, _ := s.do("POST", "/v1/instances", string(moved))
		return code == http.StatusOK
	})
	if st := s.status(); len(st.GPUs[0].Clients) != 1 || len(st.GPUs[1].Clients) != 0 {
		t.Errorf("status after the move: got %+v, want 1 client on the first GPU and none on the second", st)
	}
}

// TestProcessesShareQuotaAndPage checks that two processes of an instance use one budget, and that
// each has its own slot of one page.
func TestProcessesShareQuotaAndPage(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 20, request: 0.4, limit: 0.4}))
	b, err := s.dial("a", 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.Welcome.Slot == b.Welcome.Slot {
		t.Fatalf("slots of two processes of one instance: got %d for both, want different ones", a.Welcome.Slot)
	}
	a.Slot().MemUsed = 5 << 20
	rows := s.status().GPUs[0].Clients
	if len(rows) != 2 || rows[0].MemUsedMiB+rows[1].MemUsedMiB != 8 {
		t.Errorf("clients: got %+v, want 2 that use 8 MiB together", rows)
	}
	// The parked memory is at most the used memory.
	a.Slot().MemParked, b.Slot().MemParked = 2<<20, 64<<20
	if rows := s.status().GPUs[0].Clients; rows[0].MemParkedMiB+rows[1].MemParkedMiB != 5 {
		t.Errorf("clients: got %+v, want 5 MiB parked together", rows)
	}
	a.Slot().MemParked, b.Slot().MemParked = 0, 0
	// Imported memory is shown in addition to used memory.
	a.Slot().MemImported = 7 << 20
	if rows := s.status().GPUs[0].Clients; rows[0].MemImportedMiB+rows[1].MemImportedMiB != 7 || rows[0].MemUsedMiB+rows[1].MemUsedMiB != 8 {
		t.Errorf("clients: got %+v, want 7 MiB imported and 8 MiB used together", rows)
	}
	a.Slot().MemImported = 0
	const length = time.Second
	undisturbed(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), length)
		defer cancel()
		var used [2]time.Duration
		var both errgroup.Group
		for n := range used {
			c, err := s.dial("a", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			both.Go(func() (err error) {
				used[n], err = c.Saturate(ctx, 1, time.Millisecond)
				return err
			})
		}
		if err := both.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := (used[0] + used[1]).Seconds() / length.Seconds(); got < 0.35 || got > 0.45 {
			return fmt.Errorf("together they used %.3f of the GPU, want 0.4", got)
		}
		return nil
	})
}

// undisturbed repeats a try that other programs on the host can disturb, until it succeeds.
func undisturbed(t *testing.T, try func() error) {
	t.Helper()
	var err error
	for range 10 {
		if err = try(); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}
