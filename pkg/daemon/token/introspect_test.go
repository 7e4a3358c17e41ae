package token

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// row returns the status row of an instance's only process.
func (s *server) row(instance string) wire.ClientStatus {
	s.t.Helper()
	for _, g := range s.status().GPUs {
		for _, c := range g.Clients {
			if c.Instance == instance {
				return c
			}
		}
	}
	s.t.Fatalf("status: instance %s is missing", instance)
	return wire.ClientStatus{}
}

// work makes a client launch until the test ends.
func work(t *testing.T, c *tokentest.Client, blocks uint64) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Work(ctx, blocks, time.Millisecond) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func introspective(t *testing.T) *server {
	return serve(t, Config{Policy: policy.Introspection})
}

// TestBudget limits a process of unknown speed to 0.3. It must launch that part of its launches
// alone and without a limit.
func TestBudget(t *testing.T) {
	s := introspective(t)
	c := s.join(reg("a", share{sm: 100, request: 0.2, limit: 0.3}))
	if !c.Metered() {
		t.Fatal("page under the policy introspective: got not metered, want metered")
	}
	work(t, c, 64)
	eventually(t, "instance a has a budget", func() bool { return s.row("a").BudgetBlocks > 0 })
	// The speed results from a trial of the same process on the same host.
	near := 0
	eventually(t, "instance a has used 0.2 to 0.4 of the GPU 20 times in succession", func() bool {
		before := atomic.LoadUint64(&c.Slot().Blocks)
		eventually(t, "instance a launches again", func() bool { return atomic.LoadUint64(&c.Slot().Blocks) > before })
		if used := s.row("a").Used; used > 0.2 && used < 0.4 {
			near++
		} else {
			near = 0
		}
		return near == 20
	})
	row := s.row("a")
	if row.Phase != "NONE" || row.State != "running" || row.Launches == 0 {
		t.Errorf("status of a: got %+v, want phase NONE, state running and launches", row)
	}
	if _, text := s.do("GET", "/metrics", ""); !strings.Contains(text, `gfaas_token_phase{gpu="sim",instance="a",phase="NONE"} 1`) {
		t.Errorf("metrics: want gfaas_token_phase of a as NONE, got\n%s", text)
	}
}

// TestBudgetsSideBySide checks that two processes hold leases at the same time.
func TestBudgetsSideBySide(t *testing.T) {
	s := introspective(t)
	a, b := s.join(reg("a", share{sm: 100, request: 0.3, limit: 0.8})), s.join(reg("b", share{sm: 100, request: 0.5, limit: 0.8}))
	work(t, a, 10)
	work(t, b, 1000)
	eventually(t, "clients a and b run", func() bool { return s.row("a").State == "running" && s.row("b").State == "running" })
	if row := s.row("a"); row.SMPct != 100 || row.QuotaLimit != 0.8 {
		t.Errorf("status of a: got %+v, want 100%% of the SMs and a quota limit of 0.8", row)
	}
}

// TestMultiTokenIsNotMetered checks that the status of multi-token lacks the fields of introspective.
func TestMultiTokenIsNotMetered(t *testing.T) {
	s := serve(t, Config{})
	c := s.join(reg("a", share{sm: 100, request: 1, limit: 1}))
	s.lease(c)
	_, text := s.do("GET", "/v1/status", "")
	if c.Metered() || strings.Contains(text, "phase") || strings.Contains(text, "budget") {
		t.Errorf("under multi-token: got metered %v and the status %s, want no metering, phase or budget", c.Metered(), text)
	}
}

// TestIdleNeedsNoTimer checks that the daemon sets no timer while all clients are idle.
func TestIdleNeedsNoTimer(t *testing.T) {
	s := introspective(t)
	c := s.join(reg("a", share{sm: 100, request: 0.5, limit: 0.5}))
	lease := s.lease(c)
	if err := c.Return(lease, 0, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	eventually(t, "client a is idle", func() bool { return s.row("a").State == "idle" })
	// The last wake still happens and requests no other wake, so the timer is not set again.
	eventually(t, "the daemon has set no timer", func() bool {
		set := true
		_ = s.d.locked(func() { set = s.d.registry.gpus.alarm.at != 0 })
		return !set
	})
}
