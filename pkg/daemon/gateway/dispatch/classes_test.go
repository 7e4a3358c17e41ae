package dispatch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestGPUsOfDifferentModels checks that a call runs on the GPU whose model was measured to be faster, and
// that the next gateway knows this before its first call.
func TestGPUsOfDifferentModels(t *testing.T) {
	for _, models := range [][2]string{{"slow", "fast"}, {"same", "same"}} {
		t.Run(models[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "costs.json")
				twoGPUs := func(c *Config, _ *Settings) {
					c.Concurrency, c.Policy.Policy, c.LearnedFile = 1, "fcfs", file
					c.GPUs = []GPU{{Name: "sim:0", Model: models[0]}, {Name: "sim:1", Model: models[1]}}
				}
				d := newDispatcher(t, fakeShell{}, twoGPUs)
				begin := func(d *Dispatcher) (a *Attempt, gpu int32) {
					a = &Attempt{}
					d.Submit(a, d.Function("f"), plainCall{})
					turn := <-a.Turn()
					if turn.Refusal != nil {
						t.Fatal(turn.Refusal)
					}
					return a, turn.Instance.gpu
				}
				a, first := begin(d)
				b, second := begin(d)
				if first != 0 || second != 1 {
					t.Fatalf("GPUs of two calls at once: got %d and %d, want 0 and 1", first, second)
				}
				time.Sleep(time.Second)
				b.Finish(true)
				time.Sleep(9 * time.Second)
				a.Finish(true)
				want := int32(0)
				if models[0] != models[1] {
					want = 1
				}
				c, gpu := begin(d)
				if gpu != want {
					t.Errorf("GPU of the third call: got %d, want %d", gpu, want)
				}
				c.Finish(true)
				text, err := json.Marshal(d.learnedNow())
				if err == nil {
					err = os.WriteFile(file, text, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				next := newDispatcher(t, fakeShell{}, twoGPUs)
				c, gpu = begin(next)
				if gpu != want {
					t.Errorf("GPU of the first call of the next gateway: got %d, want %d", gpu, want)
				}
				c.Finish(true)
			})
		})
	}
}
