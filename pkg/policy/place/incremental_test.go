package place

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// all documents the codes of changes.
var all = slices.Concat(Reasons, online.Reasons)

func fastPlanner(in Input) (plan.Plan, error) {
	return Fast(in, Options{TieBreak: LargerQuota, Order: Largest})
}

func incrementally(t fataler, current plan.Plan, in Input, o IncrementalOptions, planner Planner) (plan.Plan, map[string]reason.Reason) {
	o.TieBreak, o.Threshold = LargerQuota, maxrect.DefaultThreshold
	made, err := Incremental(current, in, o, planner)
	if err != nil {
		t.Fatalf("make an incremental plan: %v", err)
	}
	p, why := made.Plan, made.Reasons
	if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(found) > 0 {
		t.Fatalf("violations: got %+v, want none in\n%+v", found, p)
	}
	for _, s := range made.Servable {
		if !slices.ContainsFunc(p.Unplaced, func(u plan.Unplaced) bool { return u.Function == s.Function && s.RPS > 0 && s.RPS <= u.RPS }) {
			t.Fatalf("servable demand: got %+v, want a part of the unplaced demand, %+v", s, p.Unplaced)
		}
	}
	return p, why
}

type fataler interface{ Fatalf(string, ...any) }

func text(t fataler, p plan.Plan) string {
	var b bytes.Buffer
	if err := p.WriteJSON(&b); err != nil {
		t.Fatalf("write the plan: %v", err)
	}
	return b.String()
}

func demand(pairs ...any) []plan.Demand {
	var out []plan.Demand
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, plan.Demand{Function: pairs[i].(string), RPS: float64(pairs[i+1].(int))})
	}
	return out
}

// listed returns the changes of a kind, formatted as "id on gpu".
func listed(changes []diff.Change, do string) []string {
	var out []string
	for _, c := range changes {
		if c.Kind == do {
			out = append(out, c.ID+" on "+strings.Join(c.GPUs, ","))
		}
	}
	return out
}

// TestServable checks that Incremental returns the demand that only a plan from nothing serves.
func TestServable(t *testing.T) {
	rows := []profile.Row{row("a", figures{sm: 50, quota: 1, rps: 50}), row("b", figures{sm: 50, quota: 1, rps: 50}), row("c", figures{sm: 50, quota: 1, rps: 50}), row("whole", figures{sm: 100, quota: 1, rps: 60})}
	gpus := []plan.Device{{Node: "n"}, {Node: "n", Index: 1}, {Node: "n", Index: 2}}
	current, err := fastPlanner(Input{Profile: rows, Demand: demand("a", 50, "b", 50, "c", 50), Devices: gpus})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		gpus   int
		demand []plan.Demand
		moves  int
		want   []plan.Unplaced
	}{
		"all of a function":              {2, demand("a", 50, "c", 50, "whole", 60), 0, []plan.Unplaced{{Function: "whole", RPS: 60}}},
		"a part of a function":           {3, demand("a", 50, "c", 50, "whole", 120), 0, []plan.Unplaced{{Function: "whole", RPS: 60}}},
		"with moves":                     {2, demand("a", 50, "c", 50, "whole", 60), 1, nil},
		"nothing unplaced":               {2, demand("a", 50, "c", 50), 0, nil},
		"a new plan serves no more":      {2, demand("a", 50, "b", 50, "c", 50, "whole", 60), 0, nil},
		"function without configuration": {2, demand("a", 50, "unknown", 60), 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Profile: rows, Demand: c.demand, Devices: gpus[:c.gpus]}
			made, err := Incremental(current, in, IncrementalOptions{TieBreak: LargerQuota, Threshold: maxrect.DefaultThreshold, MaxMoves: c.moves}, fastPlanner)
			if err != nil || !slices.Equal(made.Servable, c.want) {
				t.Errorf("got %+v, %v; want %+v", made.Servable, err, c.want)
			}
		})
	}
}

func TestIncremental(t *testing.T) {
	rows := []profile.Row{row("a", figures{sm: 50, quota: 1, rps: 50}), row("b", figures{sm: 50, quota: 0.5, rps: 20}), row("b", figures{sm: 20, quota: 0.5, rps: 5}), row("c", figures{sm: 100, quota: 1, rps: 90})}
	for what, c := range map[string]struct {
		from, to     []plan.Demand
		devices      []plan.Device
		moves        int
		stop, start  []string
		keeps, gpus  int
		unplaced     string
		whyStop      string
		alternatives bool
	}{
		"same":         {from: demand("a", 100, "b", 40), to: demand("a", 100, "b", 40), keeps: 4, gpus: 2},
		"up":           {from: demand("a", 50), to: demand("a", 140), start: []string{"a-1 on node0/0", "a-2 on node0/1"}, keeps: 1, gpus: 2},
		"up in a hole": {from: demand("a", 50), to: demand("a", 50, "b", 20), start: []string{"b-0 on node0/0"}, keeps: 1, gpus: 1},
		"down": {from: demand("a", 150), to: demand("a", 60), stop: []string{"a-2 on node0/1"}, keeps: 2, gpus: 1,
			whyStop: "less-demand; rps=60"},
		"down a little": {from: demand("a", 150), to: demand("a", 149), keeps: 3, gpus: 2},
		"gone":          {from: demand("a", 50, "b", 20), to: demand("b", 20), stop: []string{"a-0 on node0/0"}, keeps: 1, gpus: 1, whyStop: "not-in-demand"},
		"another":       {from: demand("a", 50), to: demand("c", 90), stop: []string{"a-0 on node0/0"}, start: []string{"c-0 on node0/0"}, gpus: 1},
		"GPU gone": {from: demand("a", 100), to: demand("a", 100), devices: []plan.Device{{Node: "node1"}}, gpus: 1,
			stop: []string{"a-0 on node0/0", "a-1 on node0/0"}, start: []string{"a-2 on node1/0", "a-3 on node1/0"}, whyStop: "gpu-not-in-inventory"},
		"too few": {from: demand("a", 50), to: demand("a", 50, "c", 90), devices: []plan.Device{{Node: "node0"}}, keeps: 1, gpus: 1,
			unplaced: "gpus-full-beside-running; gpus=1; sm_pct=100; quota=1; batch=1"},
	} {
		t.Run(what, func(t *testing.T) {
			current, err := fastPlanner(Input{Profile: rows, Demand: c.from})
			if err != nil {
				t.Fatal(err)
			}
			in := Input{Profile: rows, Demand: c.to, Devices: c.devices}
			p, why := incrementally(t, current, in, IncrementalOptions{MaxMoves: c.moves}, fastPlanner)
			changes := diff.Plans(current, p)
			if got := listed(changes, diff.Stop); !slices.Equal(got, c.stop) {
				t.Errorf("stopped instances: got %v, want %v", got, c.stop)
			}
			if got := listed(changes, diff.Start); !slices.Equal(got, c.start) {
				t.Errorf("started instances: got %v, want %v", got, c.start)
			}
			if got := diff.Count(changes, diff.Keep); got != c.keeps || p.GPUsUsed != c.gpus {
				t.Errorf("got %d kept instances on %d GPUs, want %d on %d", got, p.GPUsUsed, c.keeps, c.gpus)
			}
			for _, ch := range changes {
				if ch.Kind != diff.Keep && all.Check(why[ch.ID]) != nil {
					t.Errorf("reason to %s %s: got %q, want a documented one", ch.Kind, ch.ID, why[ch.ID])
				}
				if ch.Kind == diff.Stop && c.whyStop != "" && why[ch.ID].String() != c.whyStop {
					t.Errorf("reason to stop %s: got %q, want %q", ch.ID, why[ch.ID], c.whyStop)
				}
			}
			if c.unplaced != "" && (len(p.Unplaced) != 1 || p.Unplaced[0].Reason != c.unplaced) {
				t.Errorf("got unplaced %+v, want one with the reason %s", p.Unplaced, c.unplaced)
			}
		})
	}
}

// A move merges two half-empty GPUs into one.
func TestMovesFreeAGPU(t *testing.T) {
	rows := []profile.Row{row("a", figures{sm: 50, quota: 1, rps: 50}), row("b", figures{sm: 50, quota: 1, rps: 50}), row("c", figures{sm: 50, quota: 1, rps: 50})}
	current, _ := fastPlanner(Input{Profile: rows, Demand: demand("a", 50, "c", 50, "b", 50)})
	in := Input{Profile: rows, Demand: demand("a", 50, "b", 50)}
	if p, _ := incrementally(t, current, in, IncrementalOptions{}, fastPlanner); p.GPUsUsed != 2 {
		t.Errorf("without moves: got %d GPUs, want 2", p.GPUsUsed)
	}
	p, why := incrementally(t, current, in, IncrementalOptions{MaxMoves: 1}, fastPlanner)
	if p.GPUsUsed != 1 || why["b-0"].String() != "moved-to; instance=b-1; gpu=node0/0" && why["a-0"].String() != "moved-to; instance=a-1; gpu=node0/1" {
		t.Errorf("with a move: got %d GPUs, reasons %v; want 1 GPU, and a-0 or b-0 moved", p.GPUsUsed, why)
	}
}

// If the number of GPUs is limited, a move makes the missing room.
func TestMovesMakeRoom(t *testing.T) {
	rows := []profile.Row{row("a", figures{sm: 50, quota: 1, rps: 50}), row("b", figures{sm: 50, quota: 1, rps: 50}), row("c", figures{sm: 50, quota: 1, rps: 50}), row("d", figures{sm: 100, quota: 1, rps: 90})}
	devices := []plan.Device{{Node: "n"}, {Node: "n", Index: 1}}
	current, _ := fastPlanner(Input{Profile: rows, Demand: demand("a", 50, "c", 50, "b", 50), Devices: devices})
	in := Input{Profile: rows, Demand: demand("a", 50, "b", 50, "d", 90), Devices: devices}
	if p, _ := incrementally(t, current, in, IncrementalOptions{}, fastPlanner); len(p.Unplaced) != 1 {
		t.Errorf("without moves: got unplaced %+v, want one", p.Unplaced)
	}
	if p, _ := incrementally(t, current, in, IncrementalOptions{MaxMoves: 1}, fastPlanner); len(p.Unplaced) != 0 {
		t.Errorf("with a move: got unplaced %+v, want none", p.Unplaced)
	}
}

// redraw changes a demand: it raises some rates, lowers others, and may add or remove a function.
func redraw(t *rapid.T, in Input) Input {
	out := in
	out.Demand = nil
	for _, d := range in.Demand {
		switch rapid.IntRange(0, 4).Draw(t, "change") {
		case 0:
			continue
		case 1:
			d.RPS *= rapid.Float64Range(0.1, 1).Draw(t, "less")
		case 2:
			d.RPS *= rapid.Float64Range(1, 4).Draw(t, "more")
		}
		out.Demand = append(out.Demand, d)
	}
	if rapid.Bool().Draw(t, "new") {
		out.Profile = append(slices.Clone(out.Profile), drawRows(t, "z")...)
		out.Demand = append(out.Demand, plan.Demand{Function: "z", RPS: rapid.Float64Range(1, 200).Draw(t, "rps")})
	}
	if rapid.IntRange(0, 3).Draw(t, "GPU gone") == 0 && len(out.Devices) > 0 {
		out.Devices = slices.Clone(out.Devices[1:])
	}
	return out
}

// checkIncremental checks the invariants of incremental plans.
func checkIncremental(t *rapid.T, in Input, planner Planner) {
	current, err := planner(in)
	if err != nil {
		t.Fatal(err)
	}
	moves := rapid.SampledFrom([]int{0, 0, 1, 3, 100}).Draw(t, "moves")
	o := IncrementalOptions{MaxMoves: moves}
	same, _ := incrementally(t, current, in, IncrementalOptions{}, planner)
	if len(current.Unplaced) == 0 && text(t, same) != text(t, current) || diff.Count(diff.Plans(current, same), diff.Stop) > 0 {
		t.Fatalf("incremental plan for the same demand: got\n%s\nwant no stops, and if all is placed, the current plan\n%s", text(t, same), text(t, current))
	}
	next := redraw(t, in)
	p, why := incrementally(t, current, next, o, planner)
	changes := diff.Plans(current, p)
	was, is := map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		was[c.ID] = was[c.ID] || c.Kind != diff.Start
		if c.Kind == diff.Start && is[c.ID] || c.Kind != diff.Keep && all.Check(why[c.ID]) != nil {
			t.Fatalf("got change %+v, want a new ID and a documented reason", c)
		}
		is[c.ID] = true
	}
	moved := 0
	for _, c := range changes {
		if c.Kind == diff.Start && was[c.ID] {
			t.Fatalf("start of %s: a running instance has this ID, want a new ID", c.ID)
		}
		if c.Kind == diff.Stop && why[c.ID].Code == movedTo {
			moved++
		}
	}
	if moved > moves {
		t.Fatalf("moves: got %d, want at most %d", moved, moves)
	}
	again, _ := incrementally(t, current, next, o, planner)
	if text(t, again) != text(t, p) {
		t.Fatalf("plan of the same input: got\n%s\nwant\n%s", text(t, again), text(t, p))
	}
	checkStops(t, in, next, changes, why)
}

// checkStops checks that no instance stops if it could stay and the demand of its function did not
// decrease.
func checkStops(t *rapid.T, before, after Input, changes []diff.Change, why map[string]reason.Reason) {
	rps := map[string]float64{}
	for _, d := range before.Demand {
		rps[d.Function] = d.RPS
	}
	for _, d := range after.Demand {
		for _, c := range changes {
			if c.Kind == diff.Stop && c.Function == d.Function && d.RPS >= rps[d.Function] &&
				why[c.ID].Code != movedTo && why[c.ID].Code != notInInventory {
				t.Fatalf("reason to stop %s, without less demand: got %s, want %s or %s", c.ID, why[c.ID], movedTo, notInInventory)
			}
		}
	}
}

func TestIncrementalProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkIncremental(t, drawInput(t), fastPlanner) })
}

// Plans by Joint also have shared weights and timetables.
func TestIncrementalFromJointPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := JointOptions{Model: rapid.SampledFrom([]string{plan.ModelRect, plan.ModelTokens}).Draw(t, "model"), ShareModels: rapid.Bool().Draw(t, "share")}
		in := drawInput(t)
		for i := range in.Profile {
			in.Profile[i].ModelMemMiB = float64(int(in.Profile[i].GPUMemMiB) / 2)
		}
		for _, name := range []string{"a", "b"} {
			if rapid.Bool().Draw(t, "function") {
				fn := function.Function{Name: name, GPUs: rapid.IntRange(1, 3).Draw(t, "span")}
				if rapid.Bool().Draw(t, "model") {
					fn.Model = &function.Model{Name: "m"}
				}
				in.Functions = append(in.Functions, fn)
			}
		}
		checkIncremental(t, in, func(in Input) (plan.Plan, error) {
			p, _, err := Joint(in, o)
			return p, err
		})
	})
}

// TestIncrementalKeepsBesideWhatCannotBe checks that the weights of a function that no node can host
// do not reduce the room of another function with the same weights.
func TestIncrementalKeepsBesideWhatCannotBe(t *testing.T) {
	shares := &function.Model{Name: "m"}
	wide, narrow := row("wide", figures{sm: 12, quota: 0.5, rps: 1}), row("narrow", figures{sm: 12, quota: 0.5, rps: 1})
	wide.GPUMemMiB, wide.ModelMemMiB, narrow.GPUMemMiB = 2000, 1900, 100
	in := Input{
		Profile:   []profile.Row{wide, narrow},
		Functions: []function.Function{{Name: "wide", GPUs: 2, Model: shares}, {Name: "narrow", GPUs: 1, Model: shares}},
		Devices:   []plan.Device{{Node: "n", MemMiB: 3000, UsedMemMiB: 2500}, {Node: "o", MemMiB: 3000}},
		Demand:    []plan.Demand{{Function: "wide", RPS: 1}, {Function: "narrow", RPS: 4}},
	}
	planner := func(in Input) (plan.Plan, error) {
		p, _, err := Joint(in, JointOptions{ShareModels: true})
		return p, err
	}
	current, err := planner(in)
	if err != nil {
		t.Fatal(err)
	}
	current.GPUs[0].Node = "n"
	made, err := Incremental(current, in, IncrementalOptions{ShareModels: true}, planner)
	if err != nil || made.Plan.Demand[1].ServedRPS != 4 || len(made.Reasons) > 0 {
		t.Errorf("got %v, demand %+v, reasons %v; want 4 requests a second of the second function served, and no changes", err, made.Plan.Demand, made.Reasons)
	}
}
