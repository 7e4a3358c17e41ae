package token

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
)

// TestKillsAtRandomPoints kills processes anywhere in their lives, from before
// their hello to while they drain. What they held is free at once.
func TestKillsAtRandomPoints(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 60, 0.5, 1))
	b := s.join(reg("b", 60, 0.5, 1))
	var freed []time.Duration
	for range 30 {
		cmd := role(t, roleLooper, s.clientSocket(), "")
		<-time.After(rand.N(50 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		eventually(t, "it is gone", func() bool { return s.status().GPUs[0].Clients[0].State == "absent" })
		lease := s.lease(b)
		freed = append(freed, time.Since(killed))
		if err := b.Return(lease, time.Microsecond, false); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(freed)
	t.Logf("free after %v at the median, %v at most", freed[len(freed)/2], freed[len(freed)-1])
	if freed[len(freed)/2] > 100*time.Millisecond {
		t.Error("at the median that is more than a window")
	}
	_ = s.d.locked(func() {
		if len(s.d.members) != 1 {
			t.Errorf("%d clients are left, want b", len(s.d.members))
		}
	})
}

// crowd is programs that come back whenever the daemon does.
type crowd struct {
	launches [50]atomic.Int64
	holders  atomic.Int64
	worst    atomic.Int64 // most holders at once since it was set to 0
	linked   atomic.Int64
	programs sync.WaitGroup
}

// run is one of them: like the preload library it connects, launches while it
// holds a lease, and closes its gate when the connection ends.
func (c *crowd) run(ctx context.Context, socket string, n int) {
	id := fmt.Sprintf("i%d", n)
	for ctx.Err() == nil {
		client, err := tokentest.Dial(socket, id, "secret of "+id, 0)
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		c.linked.Add(1)
		c.work(ctx, client, n)
		c.linked.Add(-1)
		client.Close()
	}
}

func (c *crowd) work(ctx context.Context, client *tokentest.Client, n int) {
	for ctx.Err() == nil && client.Request() == nil {
		lease, err := client.Await(ctx)
		if err != nil {
			return
		}
		if held := c.holders.Add(1); held > c.worst.Load() {
			c.worst.Store(held)
		}
		start := time.Now()
		for client.Gate() == lease && time.Since(start) < 2*time.Millisecond {
			c.launches[n].Add(1)
			time.Sleep(100 * time.Microsecond)
		}
		c.holders.Add(-1)
		if client.Return(lease, time.Since(start), false) != nil {
			return
		}
	}
}

func (c *crowd) sum() (n int64) {
	for i := range c.launches {
		n += c.launches[i].Load()
	}
	return n
}

// TestRestarts kills the daemon again and again under fifty programs. Without
// it nobody launches; the next one knows the instances, and everybody goes on,
// never more at once than fit.
func TestRestarts(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	var c crowd
	ctx, stop := context.WithCancel(context.Background())
	defer c.programs.Wait()
	defer stop()
	for round := range 4 {
		s, daemon := serveApart(t, socket)
		if round == 0 {
			for n := range c.launches {
				s.register(reg(fmt.Sprintf("i%d", n), 50, 0.02, 1))
				c.programs.Go(func() { c.run(ctx, s.clientSocket(), n) })
			}
		}
		eventually(t, "all are back", func() bool { return c.linked.Load() == int64(len(c.launches)) })
		c.worst.Store(0)
		var before [len(c.launches)]int64
		for n := range c.launches {
			before[n] = c.launches[n].Load()
		}
		eventually(t, "all go on", func() bool {
			for n := range c.launches {
				if c.launches[n].Load() == before[n] {
					return false
				}
			}
			return true
		})
		for _, row := range s.status().GPUs[0].Clients {
			if row.State == "absent" {
				t.Errorf("round %d: %s is absent", round, row.Instance)
			}
		}
		if err := daemon.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all notice", func() bool { return c.linked.Load() == 0 && c.holders.Load() == 0 })
		if worst := c.worst.Load(); worst > 2 {
			t.Errorf("round %d: %d held leases at once, of 50%% each", round, worst)
		}
		launched := c.sum()
		_ = daemon.Wait()
		if again := c.sum(); again != launched {
			t.Errorf("round %d: %d launches without a daemon", round, again-launched)
		}
	}
}
