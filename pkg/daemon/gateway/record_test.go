package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
)

// TestRecordReplays checks, for every policy, that a replay of a record makes the recorded decisions,
// and that Replay finds a decision that was changed in the record. To get a record with many kinds of
// events, the test sends random calls, of which some are cancelled, and ends instances.
func TestRecordReplays(t *testing.T) {
	t.Parallel()
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			var steps sync.WaitGroup
			w := newWorld(t, pathHandlers{
				"/wait": func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) },
				"/die":  hangUp,
			}, func(c *Config) {
				c.Policy.Policy, c.Record, c.GPUs = policy, &text, []GPU{{Name: "sim", Mem: 4 << 30}, {Name: "sim:1", Mem: 4 << 30}}
				c.Policy.Options.Penalty, c.BatchWindow = 3, 2*time.Millisecond
				c.Set = map[string]string{"penalty": "3"} // written to the record, so that replayed sets the same penalty
			})
			f := fn("a", func(f *function.Function) {
				f.Scale.Idle, f.GPUMem, f.Affinity = 5*time.Millisecond, gpu.GiB, "header:X-Session"
			})
			w.apply(f, fn("b", func(f *function.Function) {
				f.Scale.Min, f.GPUMem, f.Inflight, f.Affinity = 1, gpu.GiB, 2, "header:X-Session"
			}), fn("c", func(f *function.Function) { f.GPUMem = 3 * gpu.GiB }))
			const plannedRPS = 70
			w.gfaasUpWithRate("a-0", f, plannedRPS) // the gateway adopts one instance of a plan with a rate, and one without
			w.gfaasUp("a-1", f)
			w.until("a-0 and a-1 are adopted", func() bool { return slices.Contains(w.startedIDs(), "a-0") && slices.Contains(w.startedIDs(), "a-1") })
			for i := range 8 {
				steps.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 1))
					for range 12 {
						ctx, cancel := context.WithCancel(context.Background())
						if r.IntN(4) == 0 {
							time.AfterFunc(time.Duration(r.IntN(2000))*time.Microsecond, cancel)
						}
						path := []string{"/wait", "/x", "/die"}[r.IntN(3)]
						_, _ = w.try(ctx, []string{"POST", "GET"}[r.IntN(2)], fmt.Sprintf("/function/%c%s", 'a'+r.IntN(3), path), "",
							"X-Session", []string{"", "s", "t"}[r.IntN(3)])
						cancel()
						if r.IntN(10) == 0 {
							for _, id := range w.runtime.Running() {
								w.runtime.Kill(id, 1)
								break
							}
						}
					}
				})
			}
			steps.Wait()
			f.Env = map[string]string{"VERSION": "2"}
			w.apply(f)
			if err := w.catalog.Remove(context.Background(), "b"); err != nil {
				t.Fatal(err)
			}
			w.until("the gateway has forgotten the removed function", func() bool { return len(w.dispatcher.Snapshot().Functions) == 2 })
			w.close()
			if err := replayed(text.Bytes()); err != nil {
				t.Fatalf("replay: got %v, want the recorded decisions", err)
			}
			whole := text.String()
			if err := replayed([]byte(whole[:len(whole)-10])); err != nil {
				t.Errorf("replay of a record without its last 10 bytes: got %v, want the recorded decisions", err)
			}
			const run, start = `"action":"run"`, `"action":"start"` // the first decision to run an invocation is changed
			line := 1 + strings.Count(whole[:strings.Index(whole, run)], "\n")
			var other *record.Difference
			if err := replayed([]byte(strings.Replace(whole, run, start, 1))); !errors.As(err, &other) || other.Line != line {
				t.Errorf("replay of a changed record: got %v, want a difference in line %d", err, line)
			}
		})
	}
}

// replayed replays a record with its policy and its settings. If a decision differs from the recorded one,
// it returns a *record.Difference.
func replayed(text []byte) error {
	r, err := record.NewReader(bytes.NewReader(text), "record")
	if err != nil {
		return err
	}
	o := queue.Defaults()
	for key, value := range r.Set {
		if err := policy.Find(queue.Parameters(), key).Set(&o, value); err != nil {
			return err
		}
	}
	replaying, err := queue.New(queue.Config{Policy: r.Policy, Pool: r.Pool, Options: o})
	if err != nil {
		return err
	}
	return record.Replay(r, replaying)
}

// broken is a writer on which every write fails.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestRecordBroken checks that calls succeed even if the gateway cannot write the record.
func TestRecordBroken(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Record = broken{} })
	w.apply(fn("f"))
	for range 3 {
		if a := w.do("POST", "/function/f", "x"); a.status != 200 {
			t.Errorf("call: got %+v, want status 200", a)
		}
	}
}
