package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// newStarts drives a policy with one GPU of four slots and 100 bytes, and a function of 60 bytes
// whose instances run two invocations at once.
func newStarts(t *testing.T, change func(*queue.Function)) (step func(now time.Duration, events ...queue.Event) string, set func(renew bool) queue.Event) {
	t.Helper()
	p, err := queue.New(queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	spec := queue.Function{Warm: time.Second, Cold: 3 * time.Second, Load: time.Second, Mem: 60, Weight: 1, Inflight: 2}
	if change != nil {
		change(&spec)
	}
	step = func(now time.Duration, events ...queue.Event) string {
		var actions []string
		for _, a := range p.Step(now, events, nil) {
			switch a.Kind {
			case queue.Wake:
			case queue.Run:
				actions = append(actions, fmt.Sprintf("run %d on %d", a.ID, a.Instance))
			case queue.Reject:
				actions = append(actions, fmt.Sprintf("reject %d: %s", a.ID, a.Reason.Code))
			default:
				actions = append(actions, fmt.Sprintf("%v %d", a.Kind, a.Instance))
			}
		}
		return strings.Join(actions, ", ")
	}
	set = func(renew bool) queue.Event { return &queue.FunctionSet{Spec: spec, Renew: renew} }
	step(0, &queue.GPUSet{Slots: 4, Mem: 100})
	return step, set
}

func lost(id residency.ID) queue.Event { return &queue.Lost{Instance: id} }

func startFailed(id residency.ID, call int64) queue.Event {
	return &queue.Failed{Execution: queue.Execution{Instance: id, ID: call}, Starting: true, Requeue: true}
}

// TestCancelStart checks that Remove cancels a start. The invocations of the start wait again,
// and then run elsewhere or are rejected. The instance's memory remains in use until Lost.
func TestCancelStart(t *testing.T) {
	const first, second = residency.ID(0), residency.ID(1)
	step, set := newStarts(t, nil)
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	want(step(0, set(false), arrives(0, 1), arrives(0, 2), arrives(0, 3)), "run 1 on 0, run 2 on 0")
	want(step(time.Second, set(true)), "remove 0") // the next instance has no memory yet
	want(step(2*time.Second, &queue.Started{Instance: first, ID: 1}), "")
	want(step(2*time.Second, lost(first)), "run 1 on 1, run 2 on 1")
	want(step(3*time.Second, &queue.FunctionRemoved{}), "remove 1, reject 1: no-function, reject 2: no-function, reject 3: no-function")
	want(step(4*time.Second, &queue.Ready{Instance: second}), "")
	want(step(4*time.Second, lost(second)), "forget -1")

	step, set = newStarts(t, func(f *queue.Function) { f.Min = 1 })
	want(step(0, set(false)), "start 0")
	want(step(time.Second, set(true)), "remove 0")
	want(step(2*time.Second, &queue.Ready{Instance: first}), "")
	want(step(2*time.Second, lost(first)), "start 2147483648")
	want(step(3*time.Second, &queue.FunctionRemoved{}), "remove 2147483648")
}

// TestPauseAfterFailures checks which failed starts count.
func TestPauseAfterFailures(t *testing.T) {
	small := func(f *queue.Function) { f.Mem, f.Inflight = 10, 1 }
	const pause = time.Second
	for _, c := range []struct {
		name  string
		set   func(*queue.Function)
		steps func(step func(time.Duration, ...queue.Event) string, set func(bool) queue.Event) []string
		want  []string
	}{
		{"calls in turn", small, func(step func(time.Duration, ...queue.Event) string, set func(bool) queue.Event) []string {
			return []string{step(0, set(false), arrives(0, 1)), step(0, startFailed(0, 1)), step(0, startFailed(1<<31, 1)), step(0, startFailed(2<<31, 1)),
				step(0, arrives(0, 2)), step(pause, arrives(0, 3))}
		}, []string{"run 1 on 0", "run 1 on 2147483648", "run 1 on 4294967296", "reject 1: " + string(queue.StartFailed), "reject 2: " + string(queue.StartFailed), "run 3 on 6442450944"}},
		{"calls at once", small, func(step func(time.Duration, ...queue.Event) string, set func(bool) queue.Event) []string {
			actions := []string{step(0, set(false), arrives(0, 1), arrives(0, 2), arrives(0, 3), arrives(0, 4), arrives(0, 5))}
			return append(actions, step(1, startFailed(0, 1), startFailed(1, 2)), step(2, startFailed(2, 3)), step(3, startFailed(3, 4)))
		}, []string{"run 1 on 0, run 2 on 1, run 3 on 2, run 4 on 3", "run 1 on 2147483649, run 2 on 2147483648",
			"reject 5: " + string(queue.StartFailed) + ", reject 3: " + string(queue.StartFailed), "reject 4: " + string(queue.StartFailed)}},
		{"one at a time after it", small, func(step func(time.Duration, ...queue.Event) string, set func(bool) queue.Event) []string {
			step(0, set(false), arrives(0, 1), arrives(0, 2), arrives(0, 3))
			step(0, startFailed(0, 1), startFailed(1, 2), startFailed(2, 3))
			return []string{step(pause, arrives(0, 4), arrives(0, 5), arrives(0, 6)), step(pause, &queue.Started{Instance: 1<<31 + 2, ID: 4})}
		}, []string{"run 4 on 2147483650", "run 5 on 2147483649, run 6 on 2147483648"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.steps(newStarts(t, c.set)); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
