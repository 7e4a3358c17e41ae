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
	go func() {
		_, err := c.Saturate(ctx, blocks, time.Millisecond)
		done <- err
	}()
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

// noted is a policy that records the instances that it is told of.
type noted struct {
	policy.Policy
	instances []policy.AddInstance
}

func (n *noted) Step(now time.Duration, events []policy.Event, actions []policy.Action) []policy.Action {
	for _, ev := range events {
		if a, ok := ev.(policy.AddInstance); ok {
			n.instances = append(n.instances, a)
		}
	}
	return n.Policy.Step(now, events, actions)
}

// TestKindReachesPolicy checks that the policy knows training jobs by their registrations, also after a change, and that a job
// gets no objective.
func TestKindReachesPolicy(t *testing.T) {
	s := introspective(t)
	s.register(reg("first", share{sm: 100, request: 0.1, limit: 0.1})) // creates the GPU
	recorder := &noted{}
	if err := s.d.locked(func() {
		g := s.d.registry.gpus.device("sim")
		recorder.Policy, g.sched = g.sched, recorder
	}); err != nil {
		t.Fatal(err)
	}
	job, other := reg("job", share{sm: 100, request: 0.3, limit: 1}), reg("other", share{sm: 100, request: 0.3, limit: 1})
	job.Kind = "training"
	s.register(job)
	s.register(other)
	if status, body := s.do("PATCH", "/v1/instances/job", `{"quota_limit": 0.5}`); status/100 != 2 {
		t.Fatalf("change of the job: got %d %s, want 2xx", status, body)
	}
	if status, body := s.do("PATCH", "/v1/instances/job", `{"slo_ms": 50}`); status != 400 || !strings.Contains(body, "not allowed with kind training") {
		t.Errorf("objective of the job: got %d %s, want 400", status, body)
	}
	if err := s.d.locked(func() {
		if got := recorder.instances; len(got) != 3 || !got[0].Training || got[1].Training || !got[2].Training || got[2].Slice.QuotaLimit != 0.5 {
			t.Errorf("instances that the policy knows: got %+v, want a job, another instance and the changed job", got)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
