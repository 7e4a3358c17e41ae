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

// TestMemory: what a policy is told of memory, and of instances that others start, is
// recorded: replayed it leads to the same decisions, and without any of it to others.
func TestMemory(t *testing.T) {
	policy, err := queue.New(queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	var numbers queue.Numbers
	f, g, h := numbers.Of("f"), numbers.Of("g"), numbers.Of("h")
	var text bytes.Buffer
	text.WriteString(strings.Replace(header, `"policy":"fcfs"`, `"policy":"gfaas"`, 1))
	spec := func(mem, need int64) *queue.Function {
		return &queue.Function{Warm: time.Millisecond, Cold: time.Second, Mem: mem, Need: need, Weight: 1}
	}
	for step, events := range [][]queue.Event{
		{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 4, Mem: 10}}, {Kind: queue.FunctionSet, Function: f, Spec: spec(1, 0)},
			{Kind: queue.FunctionSet, Function: g, Spec: spec(1, 5)}, {Kind: queue.FunctionSet, Function: h, Spec: spec(1, 0)}},
		{{Kind: queue.Adopted, Instance: -2, Function: f, To: residency.GPUWarm}},
		{{Kind: queue.Measured, Instance: -2, Function: f, Mem: 6}},
		{{Kind: queue.Arrived, Function: g, ID: 1, At: 3 * time.Second}}, // f makes room
		{{Kind: queue.Moved, Instance: -2, Function: f, To: residency.HostWarm}},
		{{Kind: queue.Failed, Function: g, ID: 1, Instance: 1, Starting: true, Short: true}},
		{{Kind: queue.Adopted, Instance: -3, Function: h, To: residency.GPUWarm, Pinned: true, Starting: true, Mem: 10}},
		{{Kind: queue.Arrived, Function: h, ID: 2, At: 7 * time.Second}},
		{{Kind: queue.Ready, Instance: -3, Function: h, Spec: &queue.Function{Warm: time.Second}}},
		{{Kind: queue.Arrived, Function: f, ID: 3, At: 9 * time.Second}}, // has no room
		{{Kind: queue.Woke}},
	} {
		now, step := time.Duration(step)*time.Second, int64(step)
		actions := policy.Step(now, events, nil)
		for i := range events {
			if err := record.Append(&text, record.Tell(step, now, &events[i], numbers.Name)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range actions {
			d := record.Decide(now, &actions[i], numbers.Name)
			d.Step = &step
			if err := record.Append(&text, d); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := replay(text.String()); err != nil {
		t.Fatalf("%v\n%s", err, &text)
	}
	for _, c := range [][2]string{
		{`"container":-2,"mem_bytes":6`, `"container":-2`}, {`,"need_bytes":5`, ``}, {`"pinned":true,"mem_bytes":10`, `"pinned":true`},
		{`"starting":true,"pinned":true`, `"pinned":true`}, {`,"each_ms":1000`, ``},
	} {
		less := strings.Replace(text.String(), c[0], c[1], 1)
		var other *record.Difference
		if err := replay(less); less == text.String() || !errors.As(err, &other) {
			t.Errorf("without %s: %v", c[0], err)
		}
	}
}
