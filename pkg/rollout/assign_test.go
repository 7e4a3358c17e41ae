package rollout

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/wire"
)

func onGPU(node string, index int, instances ...plan.Instance) plan.GPU {
	return plan.GPU{Node: node, Index: index, Instances: instances}
}

func item(id, fn string, mem float64) plan.Instance {
	return plan.Instance{ID: id, Function: fn, SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, MemMiB: mem}
}

func simulated(index int) string { return gpu.Device{Index: index, Simulated: true}.String() }

func TestAssign(t *testing.T) {
	functions := []function.Function{
		{Name: "one", Command: []string{"x"}, SM: 99, Quota: function.Quota{Request: 0.9, Limit: 1}, GPUMem: 100 * gpu.MiB, GPUs: 1}, // the plan overrides its slice
		{Name: "wide", Image: "x", GPUs: 2, Model: &function.Model{Name: "m", Size: 500 * gpu.MiB}},
	}
	shared := onGPU("n", 1, item("wide-0", "wide", 10), item("one-1", "one", 150))
	at := func(in plan.Instance, x float64) plan.Instance { in.X = &x; return in }
	limited := item("one-0", "one", 0)
	limited.SMLimitPct = 48
	shared.Models = []plan.Model{{Name: "m", MemMiB: 500}}
	p := plan.Plan{GPUs: []plan.GPU{
		onGPU("n", 0, limited), shared, onGPU("n", 2, at(item("wide-0", "wide", 10), 0.5)), onGPU("other", 0, item("far-0", "far", 0)),
	}}
	list, err := Assign(p, "n", functions, simulated, nil)
	if err != nil {
		t.Fatal(err)
	}
	limit := func(mem gpu.Bytes) gpu.Slice {
		return gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: mem}
	}
	elastic := limit(100 * gpu.MiB)
	elastic.SMLimitPct = 48
	none, half := []gpu.Turn(nil), []gpu.Turn{{From: 0.5, To: 0.8}}
	want := []instance.Placement{
		{ID: "one-0", GPUs: []string{"sim"}, Slice: elastic, Turns: [][]gpu.Turn{none}},                                // the function's limit
		{ID: "wide-0", GPUs: []string{"sim:1", "sim:2"}, Slice: limit(510 * gpu.MiB), Turns: [][]gpu.Turn{none, half}}, // the plan's, and the weights
		{ID: "one-1", GPUs: []string{"sim:1"}, Slice: limit(150 * gpu.MiB), Turns: [][]gpu.Turn{none}},                 // the plan counts on more
	}
	for i, a := range list {
		if !reflect.DeepEqual(a.Placement, want[i]) {
			t.Errorf("got %+v, want %+v", a.Placement, want[i])
		}
	}
	if list, err := Assign(p, "n", functions, simulated, []string{"n/2"}); err != nil || list[1].Turns[1] != nil {
		t.Errorf("turns where there is none to trust: %+v, %v", list, err)
	}
	record := list[1].record()
	if record.Runtime != "docker" || record.State != instance.Starting || record.Registered[0] != "wide-0" || record.Function != "wide" {
		t.Errorf("record %+v", record)
	}
	if real, err := Assign(p, "n", functions, strconv.Itoa, nil); err != nil || real[1].GPUs[1] != "2" {
		t.Errorf("real GPUs: %+v, %v", real, err)
	}
}

func TestAssignRefuses(t *testing.T) {
	functions := []function.Function{{Name: "one", GPUs: 1}, {Name: "wide", GPUs: 2}}
	low := item("one-0", "one", 0)
	low.QuotaLimit = 0.1
	for want, g := range map[string]plan.GPU{
		"not applied: far, near": onGPU("n", 0, item("far-0", "far", 0), item("near-0", "near", 0), item("far-1", "far", 0)),
		"spans 2":                onGPU("n", 0, item("wide-0", "wide", 0)),
		"spans 1":                onGPU("n", 0, item("one-0", "one", 0), item("one-0", "one", 0)),
		"invalid id":             onGPU("n", 0, item("a b", "one", 0)),
		"below the request":      onGPU("n", 0, low),
	} {
		_, err := Assign(plan.Plan{GPUs: []plan.GPU{g}}, "n", functions, simulated, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestChooseNode(t *testing.T) {
	empty := onGPU("idle", 0)
	a, b := onGPU("a", 0, item("x", "f", 0)), onGPU("b", 0, item("y", "f", 0))
	for _, c := range []struct {
		gpus        []plan.GPU
		asked, want string
		fails       bool
	}{
		{[]plan.GPU{empty, a, a}, "", "a", false},
		{[]plan.GPU{a, b}, "b", "b", false},
		{[]plan.GPU{b, a}, "", "", true},
		{[]plan.GPU{a}, "c", "", true},
		{nil, "", "", false},
	} {
		got, err := ChooseNode(plan.Plan{GPUs: c.gpus}, c.asked)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("node %q of %v: %q, %v", c.asked, c.gpus, got, err)
		}
	}
}

func TestSelect(t *testing.T) {
	records := []instance.Record{{ID: "a-0", Function: "a"}, {ID: "a-1", Function: "a"}, {ID: "b-0", Function: "b"}}
	applied := func(name string) bool { return name == "idle" }
	for names, want := range map[string]string{
		"a": "a-0 a-1", "a-1": "a-1", "b a-0": "a-0 b-0", "a a-0": "a-0 a-1", "idle": "", "a c d": "!c, d",
	} {
		list, err := Select(records, strings.Fields(names), applied)
		var ids []string
		for _, r := range list {
			ids = append(ids, r.ID)
		}
		if missing, fails := strings.CutPrefix(want, "!"); fails {
			if err == nil || !strings.HasSuffix(err.Error(), ": "+missing) {
				t.Errorf("%s: %v", names, err)
			}
		} else if err != nil || strings.Join(ids, " ") != want {
			t.Errorf("%s: %v, %v, want %s", names, ids, err, want)
		}
	}
}

// TestSlowedByHandOver checks that a function is noted only if it serves one call at a time,
// the time between calls matters, and the plan assumes random arrivals.
func TestSlowedByHandOver(t *testing.T) {
	list := func(inflight int, rps float64) []Assignment {
		a := Assignment{function.Function{Name: "f", Inflight: inflight}, instance.Placement{RPS: rps}}
		return []Assignment{a, a}
	}
	for _, c := range []struct {
		arrivals string
		list     []Assignment
		want     string
	}{
		{plan.ArrivalsPoisson, list(1, 199), "f"},
		{plan.ArrivalsPoisson, list(0, 199), "f"},
		{plan.ArrivalsPoisson, list(2, 199), ""},
		{plan.ArrivalsPoisson, list(1, 80), ""},
		{plan.ArrivalsPoisson, list(1, 0), ""},
		{"", list(1, 199), ""},
	} {
		if got := strings.Join(slowedByHandOver(plan.Plan{Arrivals: c.arrivals}, c.list), " "); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

// TestBatches checks that the batch of a plan reaches the record, and that a function whose instances get no batches is
// noted once.
func TestBatches(t *testing.T) {
	in := func(id, function string, batch int) plan.Instance {
		return plan.Instance{ID: id, Function: function, SMPct: 10, QuotaRequest: 0.1, QuotaLimit: 0.1, Batch: batch}
	}
	p := plan.Plan{GPUs: []plan.GPU{{Node: "n", Instances: []plan.Instance{in("a-0", "a", 4), in("a-1", "a", 8), in("b-0", "b", 4), in("c-0", "c", 4), in("d-0", "d", 1)}}}}
	functions := []function.Function{{Name: "a", Inflight: 1}, {Name: "b", Inflight: 2}, {Name: "c", Inflight: 1, Batcher: &function.DefaultBatcher}, {Name: "d", Inflight: 1}}
	list, err := Assign(p, "n", functions, func(int) string { return "0" }, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, a := range list {
		got = append(got, a.record().Batch)
	}
	if !slices.Equal(got, []int{4, 8, 4, 4, 0}) {
		t.Errorf("the records have the batches %v, want 4 8 4 4 0", got)
	}
	notes := Notes(p, list)
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "the plan counts on batches of 4 calls for function a, ") {
		t.Errorf("got the notes %q, want one about function a", notes)
	}
	if reason := (observed{record: list[1].record(), registered: &wire.Registration{}}).changes(list[0]); !strings.Contains(reason, "its batch differs from the plan") {
		t.Errorf("a-1 in place of a-0: got the changes %q, want that of the batch", reason)
	}
}
