package token

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestSwap checks the orders to move managed memory: an instance with work gets none, and the answer
// of the daemon depends on those of all processes and on the memory that stays on the GPU.
func TestSwap(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	a, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*tokentest.Client{a, b} {
		atomic.StoreUint64(&c.Slot().MemUsed, uint64(300*gpu.MiB))
	}
	// ask sends a request, answers the orders that the processes get, and checks the answer of the daemon. parked is
	// the memory that each process has on the host afterwards, in MiB.
	ask := func(method string, complete uint32, parked uint64, code int, text string) {
		t.Helper()
		type answer struct {
			code int
			body string
		}
		done := make(chan answer, 1)
		go func() {
			code, body := s.do(method, "/v1/instances/a/swapped", "")
			done <- answer{code, body}
		}()
		for _, c := range []*tokentest.Client{a, b} {
			m := <-c.Moves
			if (m.ToHost == 1) != (method == "PUT") {
				t.Errorf("%s swapped: got the order %+v", method, m)
			}
			atomic.StoreUint64(&c.Slot().MemParked, parked<<20)
			for _, answer := range []wire.Moved{{Number: m.Number - 1, Complete: 1 - complete}, {Number: m.Number, Complete: complete}} {
				if err := c.Send(answer); err != nil { // the first answers an earlier order and has no effect
					t.Fatal(err)
				}
			}
		}
		if got := <-done; got.code != code || !strings.Contains(got.body, text) {
			t.Errorf("%s swapped: got %d %s, want %d %s", method, got.code, got.body, code, text)
		}
	}
	ask("PUT", 1, 300, 204, "")
	ask("DELETE", 1, 0, 204, "")
	ask("PUT", 1, 299, 409, "2MiB of the instance's memory cannot be moved")
	ask("PUT", 0, 100, 409, "has work")
	ask("DELETE", 0, 100, 204, "") // its work moves the rest

	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	lease, err := a.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("PUT", "/v1/instances/a/swapped", ""); code != 409 || !strings.Contains(body, "has work") {
		t.Errorf("PUT swapped of a busy instance: got %d %s, want 409", code, body)
	}
	if len(a.Moves) > 0 {
		t.Error("a busy instance got an order, want none")
	}
	if err := a.Return(lease, time.Millisecond, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}

	// A process that ends needs no answer.
	atomic.StoreUint64(&b.Slot().MemParked, uint64(300*gpu.MiB))
	done := make(chan int, 1)
	go func() {
		code, _ := s.do("PUT", "/v1/instances/a/swapped", "")
		done <- code
	}()
	<-a.Moves
	a.Close()
	m := <-b.Moves
	if err := b.Send(wire.Moved{Number: m.Number, Complete: 1}); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != 204 {
		t.Errorf("PUT swapped while a process ends: got %d, want 204", code)
	}
	b.Close()
	eventually(t, "the processes have left", func() bool { return s.status().GPUs[0].Clients[0].State == "absent" })

	// A library that does not know the order moves its memory by its own rule.
	o := tokentest.Options{MemUsed: uint64(64 * gpu.MiB), Older: true}
	older, err := tokentest.DialWith(s.clientSocket(), "a", "secret of a", o)
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	for parked, want := range map[gpu.Bytes]int{0: 409, 64 * gpu.MiB: 204} {
		atomic.StoreUint64(&older.Slot().MemParked, uint64(parked))
		if code, body := s.do("PUT", "/v1/instances/a/swapped", ""); code != want {
			t.Errorf("PUT swapped of an older library with %v on the host: got %d %s, want %d", parked, code, body, want)
		}
	}
}
