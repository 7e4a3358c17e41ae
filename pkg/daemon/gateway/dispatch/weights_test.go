package dispatch

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/status"
)

// weightsShell is a fakeShell on which a start takes 10 s, or 1 s on GPUs that have the weights.
type weightsShell struct {
	fakeShell
	loaded *[]string // GPUs
}

func (s weightsShell) Start(_ context.Context, i *Instance, _ function.Function, _ Sharing) {
	took := 10 * time.Second
	if slices.Contains(*s.loaded, i.record.GPUs[0]) {
		took = time.Second
	}
	go func() {
		time.Sleep(took)
		i.Started(i.Record())
	}()
}

// TestStartsWhereWeightsAre checks that a start on a GPU that has the weights is measured apart, that the next start
// goes to a GPU that has them, also in the next gateway, and that GPUs without them count as before. Weights of another
// tenant do not count.
func TestStartsWhereWeightsAre(t *testing.T) {
	for _, policy := range []string{"lalb", "lalb-o3", "fcfs", "gfaas", "mqfq-sticky"} {
		t.Run(policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "costs.json")
				var loaded []string
				gateway := func() *Dispatcher {
					d := newDispatcher(t, weightsShell{loaded: &loaded}, func(c *Config, _ *Settings) {
						c.Concurrency, c.Policy.Policy, c.GPUs, c.LearnedFile = 1, policy, twoGPUs, file
					})
					fn := d.Function("f").definition
					fn.Model = &function.Model{Name: "m", File: "/m.safetensors"}
					d.Apply([]function.Function{fn})
					return d
				}
				set := func(d *Dispatcher, gpus ...string) {
					loaded = gpus
					models := []status.Model{{GPU: "sim", Name: "m", Tenant: "other", State: "gpu"}, {GPU: "sim", Name: "n", Tenant: "default", State: "gpu"}}
					for _, g := range gpus {
						models = append(models, status.Model{GPU: g, Name: "m", Tenant: "default", State: "gpu"})
					}
					d.SetWeights(models)
				}
				// start runs a call in a new instance, and returns the instance's GPU.
				start := func(d *Dispatcher) string {
					var a Attempt
					d.Submit(&a, d.Function("f"), plainCall{})
					turn := <-a.Turn()
					if turn.Refusal != nil {
						t.Fatal(turn.Refusal)
					}
					a.Finish(true)
					time.Sleep(time.Millisecond)
					d.Function("f").StopIdle()
					synctest.Wait()
					return turn.Record.GPUs[0]
				}
				d := gateway()
				set(d)
				start(d)
				set(d, "sim", "sim:1")
				start(d)
				f := d.Function("f")
				if f.costs.start.value != 10*time.Second || f.costs.shared.value != time.Second {
					t.Errorf("means of starts: got %v, and %v with the weights, want 10s and 1s", f.costs.start.value, f.costs.shared.value)
				}
				for range 2 {
					for _, gpu := range []string{"sim:1", "sim"} {
						set(d, gpu)
						if got := start(d); got != gpu {
							t.Errorf("GPU of a start: got %s, want %s, which has the weights", got, gpu)
						}
					}
				}
				text, err := json.Marshal(d.learnedNow())
				if err == nil {
					err = os.WriteFile(file, text, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				next := gateway()
				set(next, "sim:1")
				if got := start(next); got != "sim:1" {
					t.Errorf("GPU of the first start of the next gateway: got %s, want sim:1, which has the weights", got)
				}
				set(next)
				if len(next.Function("f").sentOn) > 0 {
					t.Errorf("without weights: the policy has the durations %v, want none", next.Function("f").sentOn)
				}
			})
		})
	}
}
