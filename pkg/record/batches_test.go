package record_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/record"
)

// TestReplayBatches records a call that joins a batch while another function waits. A replay decides the same. A
// record without the batch window, as earlier gateways wrote it, replays with their rule: no call joins then. The
// durations that the policy expects of batches are part of a record, too.
func TestReplayBatches(t *testing.T) {
	for _, c := range []struct {
		name    string
		batches bool
		joins   int
	}{{"with a batch window", true, 1}, {"of an earlier gateway", false, 0}} {
		t.Run(c.name, func(t *testing.T) {
			policy, err := queue.New(queue.Config{Policy: "fcfs", Pool: residency.Unlimited, Options: queue.Defaults()})
			if err != nil {
				t.Fatal(err)
			}
			var numbers queue.Numbers
			a, b := numbers.Of("a"), numbers.Of("b")
			spec := queue.Function{Warm: time.Second, Cold: time.Second, Mem: 6, Weight: 1, Inflight: 2}
			if c.batches {
				spec.Batches, spec.BatchWindow, spec.BatchSlope = true, 5*time.Second, 0.5
			}
			var text bytes.Buffer
			text.WriteString(header)
			joins := 0
			for step, events := range [][]queue.Event{
				{&queue.GPUSet{Slots: 1, Mem: 10}, &queue.FunctionSet{Function: a, Spec: spec}, &queue.FunctionSet{Function: b, Spec: spec}},
				{&queue.Arrived{Function: a}},
				{&queue.Started{Function: a}, &queue.Sized{Function: a, Times: 2}, &queue.Arrived{Function: b, ID: 1, At: 2 * time.Second}},
				{&queue.Arrived{Function: a, ID: 2, At: 3 * time.Second}},
			} {
				now, step := time.Duration(step)*time.Second, int64(step)
				for _, ev := range events {
					if err := record.Append(&text, record.NewEvent(step, now, ev, numbers.Name)); err != nil {
						t.Fatal(err)
					}
				}
				for _, action := range policy.Step(now, events, nil) {
					if action.Reason.Code == "joins-instance" {
						joins++
					}
					d := record.NewDecision(now, &action, numbers.Name)
					d.Step = &step
					if err := record.Append(&text, d); err != nil {
						t.Fatal(err)
					}
				}
			}
			if joins != c.joins {
				t.Errorf("%d calls join, want %d", joins, c.joins)
			}
			if err := replay(text.String()); err != nil {
				t.Errorf("replay: got %v, want no error\n%s", err, &text)
			}
			for _, field := range []string{`,"batch_window_ms":5000`, `,"batch_slope":0.5`} {
				var difference *record.Difference
				if without := strings.ReplaceAll(text.String(), field, ""); c.batches && !errors.As(replay(without), &difference) {
					t.Errorf("replay without %s: got no difference, want a *record.Difference", field)
				}
			}
			if wrong := strings.ReplaceAll(text.String(), `"times":2`, `"times":0`); replay(wrong) == nil {
				t.Error("replay with a duration of 0: got no error")
			}
		})
	}
}
