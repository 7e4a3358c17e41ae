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

// TestReplayNeedsMemoryFields records the decisions of a policy after events about memory and
// adopted instances, about batches, about classes of GPUs, and about durations on one GPU. A replay of the record makes the same decisions. A replay of a record in
// which any of the fields for them is missing makes other decisions.
func TestReplayNeedsMemoryFields(t *testing.T) {
	policy, err := queue.New(queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	var numbers queue.Numbers
	f, g, h, k, l := numbers.Of("f"), numbers.Of("g"), numbers.Of("h"), numbers.Of("k"), numbers.Of("l")
	var text bytes.Buffer
	text.WriteString(strings.Replace(header, `"policy":"fcfs"`, `"policy":"gfaas"`, 1))
	spec := func(mem, need int64) queue.Function {
		return queue.Function{Warm: time.Millisecond, Cold: time.Second, Mem: mem, MeasuredMem: need, Weight: 1}
	}
	itself := spec(1, 0)
	itself.BatchesItself = true
	slow := spec(0, 0)
	slow.Cold = 3 * time.Second
	for step, events := range [][]queue.Event{
		{&queue.GPUSet{Slots: 4, Mem: 10, Class: 2}, &queue.FunctionSet{Function: f, Spec: spec(1, 0)},
			&queue.FunctionSet{Function: g, Spec: spec(1, 5)}, &queue.FunctionSet{Function: h, Spec: spec(1, 0)}},
		{&queue.Adopted{Instance: -2, Function: f, To: residency.GPUWarm}},
		{&queue.Measured{Instance: -2, Function: f, Mem: 6}},
		{&queue.Arrived{Function: g, ID: 1, At: 3 * time.Second}}, // f must move to the host for it
		{&queue.Moved{Instance: -2, Function: f, To: residency.HostWarm}},
		{&queue.Failed{Execution: queue.Execution{Function: g, ID: 1, Instance: 1}, Starting: true, OutOfMemory: true}},
		{&queue.Adopted{Instance: -3, Function: h, To: residency.GPUWarm, Pinned: true, Starting: true, Mem: 10}},
		{&queue.Arrived{Function: h, ID: 2, At: 7 * time.Second}},
		{&queue.Ready{Instance: -3, Function: h, Warm: time.Second}},
		{&queue.Arrived{Function: f, ID: 3, At: 9 * time.Second}}, // does not fit beside h
		{&queue.Woke{}},
		{&queue.FunctionSet{Function: h, Spec: itself}},
		{&queue.Adopted{Instance: -3, Function: h, To: residency.GPUWarm, Pinned: true, Batch: 3}},
		{&queue.Arrived{Function: h, ID: 4, At: 13 * time.Second}}, // the second call of h on -3
		{&queue.FunctionSet{Function: k, Spec: spec(0, 0)}, &queue.Learned{Function: k, Spec: slow, Class: 2},
			&queue.Learned{Function: k, Spec: spec(0, 0)}, &queue.Arrived{Function: k, ID: 5, At: 14 * time.Second}},
		{&queue.FunctionSet{Function: l, Spec: spec(0, 0)}, &queue.Learned{Function: l, Spec: slow, Only: 1},
			&queue.Learned{Function: l, Spec: spec(0, 0)}, &queue.Arrived{Function: l, ID: 6, At: 15 * time.Second}},
	} {
		now, step := time.Duration(step)*time.Second, int64(step)
		actions := policy.Step(now, events, nil)
		for i := range events {
			if err := record.Append(&text, record.NewEvent(step, now, events[i], numbers.Name)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range actions {
			d := record.NewDecision(now, &actions[i], numbers.Name)
			d.Step = &step
			if err := record.Append(&text, d); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := replay(text.String()); err != nil {
		t.Fatalf("replay of the whole record: got %v, want no error\n%s", err, &text)
	}
	for _, c := range []struct{ text, shortened string }{
		{`"container":-2,"mem_bytes":6`, `"container":-2`}, {`,"need_bytes":5`, ``}, {`"pinned":true,"mem_bytes":10`, `"pinned":true`},
		{`"starting":true,"pinned":true`, `"pinned":true`}, {`,"each_ms":1000`, ``}, {`,"batch":3`, ``}, {`"mem_bytes":10,"class":2`, `"mem_bytes":10`}, {`,"class":2,"spec"`, `,"spec"`}, {`"function":"l","gpu":0,"spec"`, `"function":"l","spec"`}, {`,"batches_itself":true`, ``},
	} {
		if !strings.Contains(text.String(), c.text) {
			t.Errorf("the record: want it to contain %s, got\n%s", c.text, &text)
			continue
		}
		var difference *record.Difference
		if err := replay(strings.Replace(text.String(), c.text, c.shortened, 1)); !errors.As(err, &difference) {
			t.Errorf("%q in place of %q: got %v, want a *record.Difference", c.shortened, c.text, err)
		}
	}
}
