package verify

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// world is a plan under construction and its inputs.
type world struct {
	plan   plan.Plan
	in     Inputs
	shared bool
}

// drawWorld draws a random valid plan. Its GPUs are cut into columns, and these into instances, as
// rectangles or as a timetable. Memory may be limited, weights may be shared, and an instance may span two
// GPUs.
func drawWorld(t *rapid.T) *world {
	w := &world{shared: rapid.Bool().Draw(t, "shared")}
	w.plan = plan.Plan{Version: 1, Algorithm: "joint", BoundMethod: "area", Model: rapid.SampledFrom([]string{plan.ModelRect, plan.ModelTokens}).Draw(t, "model")}
	w.in = Inputs{Profile: []profile.Row{}, Demand: []plan.Demand{}, Inventory: []plan.Device{}}
	for i := range rapid.IntRange(1, 4).Draw(t, "GPUs") {
		w.gpu(t, i)
	}
	if rapid.Bool().Draw(t, "span") {
		w.span(len(w.plan.GPUs))
	}
	w.plan.GPUsUsed = len(w.plan.GPUs)
	w.plan.Bound = rapid.IntRange(0, w.plan.GPUsUsed).Draw(t, "bound")
	w.serve(t)
	return w
}

// gpu adds a GPU with random columns.
func (w *world) gpu(t *rapid.T, index int) {
	g := plan.GPU{Node: "n", Index: index, MemMiB: 10000}
	x := 0.0
	for x < 1-1e-9 {
		quota := min(rapid.SampledFrom([]float64{0.2, 0.3, 0.5}).Draw(t, "quota"), 1-x)
		for y := 0.0; y < 100; {
			sm := min(rapid.SampledFrom([]float64{20, 35, 50, 100}).Draw(t, "sm"), 100-y)
			if rapid.IntRange(0, 3).Draw(t, "free") > 0 || len(g.Instances) == 0 {
				w.add(&g, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "function"), sm, quota, x, y)
			}
			y += sm
		}
		x += quota
	}
	w.finish(g)
}

// add adds an instance to a GPU, and a row for it to the profile.
func (w *world) add(g *plan.GPU, name string, sm, quota, x, y float64) {
	row := profile.Row{Function: name, Config: profile.Config{SMPct: sm, Quota: quota, Batch: 1}, ThroughputRPS: 10, P95MS: 20, GPUMemMiB: 300, ModelMemMiB: 100}
	if len(newFacts(plan.Plan{}, Inputs{Profile: w.in.Profile}).like(row)) == 0 {
		w.in.Profile = append(w.in.Profile, row)
	}
	in := plan.Instance{
		ID: fmt.Sprintf("%s-%d-%d", name, g.Index, len(g.Instances)), Function: name, SMPct: sm,
		QuotaRequest: quota, QuotaLimit: quota, Batch: 1, RPS: 10, MemMiB: 300, X: &x, Y: &y,
	}
	if w.shared {
		in.MemMiB = 200
		if !slices.ContainsFunc(g.Models, func(m plan.Model) bool { return m.Name == name }) {
			g.Models = append(g.Models, plan.Model{Name: name, MemMiB: 110})
		}
	}
	g.Instances = append(g.Instances, in)
}

// like returns the rows of the same configuration.
func (f *facts) like(row profile.Row) []profile.Row {
	return f.rows[configOf(row.Function, row.SMPct, row.Quota, row.Batch)]
}

// finish adds the GPU to the plan. Under the model tokens, it converts the rectangles to a timetable.
func (w *world) finish(g plan.GPU) {
	if w.plan.Model == plan.ModelTokens {
		var cuts []float64
		for _, in := range g.Instances {
			cuts = append(cuts, *in.X, *in.X+in.QuotaRequest)
		}
		slices.Sort(cuts)
		for i := 1; i < len(cuts); i++ {
			entry := plan.Interval{Duration: cuts[i] - cuts[i-1]}
			for _, in := range g.Instances {
				if *in.X < cuts[i]-1e-9 && *in.X+in.QuotaRequest > cuts[i-1]+1e-9 {
					entry.Instances = append(entry.Instances, in.ID)
				}
			}
			if entry.Duration > 1e-9 && len(entry.Instances) > 0 {
				g.Schedule = append(g.Schedule, entry)
			}
		}
		for i := range g.Instances {
			g.Instances[i].X, g.Instances[i].Y = nil, nil
		}
	}
	w.plan.GPUs = append(w.plan.GPUs, g)
	w.in.Inventory = append(w.in.Inventory, plan.Device{Node: g.Node, Index: g.Index, MemMiB: 10000, UsedMemMiB: 500})
}

// span adds an instance on two GPUs of its own.
func (w *world) span(index int) {
	w.in.Functions = []function.Function{{Name: "wide", GPUs: 2}}
	for i := range 2 {
		g := plan.GPU{Node: "n", Index: index + i, MemMiB: 10000}
		w.add(&g, "wide", 80, 0.5, 0, 0)
		g.Instances[0].ID = "wide-0"
		w.finish(g)
	}
}

// serve adds the demand that the instances serve, and an unplaced part.
func (w *world) serve(t *rapid.T) {
	c := &checker{facts: newFacts(w.plan, Inputs{})}
	actual := c.servedRPS()
	for _, name := range []string{"a", "b", "c", "wide"} {
		if actual[name] == 0 {
			continue
		}
		d := plan.Served{Function: name, RPS: actual[name] - 1, ServedRPS: actual[name]}
		if rapid.IntRange(0, 3).Draw(t, "missing") == 0 {
			d.RPS = actual[name] + 5
			w.plan.Unplaced = append(w.plan.Unplaced, plan.Unplaced{Function: name, RPS: 5, Reason: "full"})
		}
		w.plan.Demand = append(w.plan.Demand, d)
		w.in.Demand = append(w.in.Demand, plan.Demand{Function: name, RPS: d.RPS, SLOMS: 25})
	}
}

// mutations holds functions that each introduce one fault into a plan. They return false if the plan has
// nothing to change. g is a GPU of the plan, and in an instance on it.
var mutations = map[string]func(w *world, g *plan.GPU, in *plan.Instance) bool{
	"id": func(w *world, g *plan.GPU, in *plan.Instance) bool { in.ID = "no id!"; return true },
	"id of another": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		other := &w.plan.GPUs[0].Instances[0]
		if other == in || other.ID == in.ID {
			return false
		}
		in.ID = other.ID
		return true
	},
	"function": func(w *world, g *plan.GPU, in *plan.Instance) bool { in.Function = "z"; return true },
	"sm 0":     func(w *world, g *plan.GPU, in *plan.Instance) bool { in.SMPct = 0; return true },
	"sm":       func(w *world, g *plan.GPU, in *plan.Instance) bool { in.SMPct += 0.5; return true },
	"sm limit": func(w *world, g *plan.GPU, in *plan.Instance) bool { in.SMLimitPct = in.SMPct - 0.5; return true },
	"sm NaN":   func(w *world, g *plan.GPU, in *plan.Instance) bool { in.SMPct = math.NaN(); return true },
	"quota":    func(w *world, g *plan.GPU, in *plan.Instance) bool { in.QuotaRequest *= 0.9; return true },
	"limit low": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		in.QuotaLimit = in.QuotaRequest - 0.01
		return true
	},
	"limit high":   func(w *world, g *plan.GPU, in *plan.Instance) bool { in.QuotaLimit = 1.01; return true },
	"batch":        func(w *world, g *plan.GPU, in *plan.Instance) bool { in.Batch = 3; return true },
	"rps":          func(w *world, g *plan.GPU, in *plan.Instance) bool { in.RPS = 10.1; return true },
	"less rps":     func(w *world, g *plan.GPU, in *plan.Instance) bool { in.RPS = 5; return true },
	"rps infinite": func(w *world, g *plan.GPU, in *plan.Instance) bool { in.RPS = math.Inf(1); return true },
	"mem":          func(w *world, g *plan.GPU, in *plan.Instance) bool { in.MemMiB = 150; return true },
	"too much mem": func(w *world, g *plan.GPU, in *plan.Instance) bool { in.MemMiB = 9501; return true },
	"mem NaN":      func(w *world, g *plan.GPU, in *plan.Instance) bool { in.MemMiB = math.NaN(); return true },
	"x": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		if in.X != nil {
			*in.X = 1 - in.QuotaRequest + 0.001
		}
		return in.X != nil
	},
	"x NaN": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		if in.X != nil {
			*in.X = math.NaN()
		}
		return in.X != nil
	},
	"y": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		if in.Y != nil {
			*in.Y = -0.01
		}
		return in.Y != nil
	},
	"no place": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		spoiled := in.X != nil
		in.X = nil
		return spoiled
	},
	"a place": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		spoiled := in.X == nil
		in.X = at(0)
		return spoiled
	},
	"onto another": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		first := &g.Instances[0]
		if first == in || in.X == nil {
			return false
		}
		*in.X, *in.Y = *first.X, *first.Y
		return true
	},
	"gone": func(w *world, g *plan.GPU, in *plan.Instance) bool { g.Instances = g.Instances[1:]; return true },
	"twice": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		g.Instances = append(g.Instances, *in)
		return true
	},
	"node":          func(w *world, g *plan.GPU, in *plan.Instance) bool { g.Node = "m"; return true },
	"index":         func(w *world, g *plan.GPU, in *plan.Instance) bool { g.Index = 99; return true },
	"GPU's memory":  func(w *world, g *plan.GPU, in *plan.Instance) bool { g.MemMiB = 10001; return true },
	"little memory": func(w *world, g *plan.GPU, in *plan.Instance) bool { g.MemMiB = 100; return true },
	"GPU twice": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		w.plan.GPUs = append(w.plan.GPUs, plan.GPU{Node: "n", Index: g.Index})
		return true
	},
	"no keeper": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		spoiled := len(g.Models) > 0
		g.Models = nil
		return spoiled
	},
	"small keeper": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		for i := range g.Models {
			g.Models[i].MemMiB = 90
		}
		return len(g.Models) > 0
	},
	"keeper of another": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		for i := range g.Models {
			g.Models[i].Name += "x"
		}
		return len(g.Models) > 0
	},
	"keeper twice": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		spoiled := len(g.Models) > 0
		g.Models = append(g.Models, g.Models...)
		return spoiled
	},
	"huge keeper": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		for i := range g.Models {
			g.Models[i].MemMiB = 9600
		}
		return len(g.Models) > 0
	},
	"longer":     entry(func(g *plan.GPU, e *plan.Interval) { e.Duration += 1 }),
	"shorter":    entry(func(g *plan.GPU, e *plan.Interval) { e.Duration -= 0.001 }),
	"infinite":   entry(func(g *plan.GPU, e *plan.Interval) { e.Duration = math.Inf(1) }),
	"a name":     entry(func(g *plan.GPU, e *plan.Interval) { e.Instances[0] = "nobody" }),
	"name twice": entry(func(g *plan.GPU, e *plan.Interval) { e.Instances = append(e.Instances, e.Instances[0]) }),
	"name less":  entry(func(g *plan.GPU, e *plan.Interval) { e.Instances = e.Instances[1:] }),
	"all at once": entry(func(g *plan.GPU, e *plan.Interval) {
		e.Instances = nil
		for _, in := range g.Instances {
			e.Instances = append(e.Instances, in.ID)
		}
		e.Instances = append(e.Instances, e.Instances[0])
	}),
	"no schedule": entry(func(g *plan.GPU, e *plan.Interval) { g.Schedule = nil }),
	"a schedule": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		g.Schedule = append(g.Schedule, plan.Interval{Duration: 0.1, Instances: []string{in.ID}})
		return in.X != nil
	},
	"served":      func(w *world, g *plan.GPU, in *plan.Instance) bool { w.plan.Demand[0].ServedRPS++; return true },
	"demand":      func(w *world, g *plan.GPU, in *plan.Instance) bool { w.plan.Demand[0].RPS *= 1.1; return true },
	"demand gone": func(w *world, g *plan.GPU, in *plan.Instance) bool { w.plan.Demand = w.plan.Demand[1:]; return true },
	"demand twice": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		w.plan.Demand = append(w.plan.Demand, w.plan.Demand[0])
		return true
	},
	"demand unwanted": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		w.plan.Demand = append(w.plan.Demand, plan.Served{Function: "z"})
		return true
	},
	"unplaced":      unplaced(func(u *plan.Unplaced) { u.RPS += 1 }),
	"unplaced less": unplaced(func(u *plan.Unplaced) { u.RPS -= 1 }),
	"unplaced NaN":  unplaced(func(u *plan.Unplaced) { u.RPS = math.NaN() }),
	"no reason":     unplaced(func(u *plan.Unplaced) { u.Reason = "" }),
	"unplaced gone": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		s := len(w.plan.Unplaced) > 0
		w.plan.Unplaced = nil
		return s
	},
	"used":           func(w *world, g *plan.GPU, in *plan.Instance) bool { w.plan.GPUsUsed++; return true },
	"negative bound": func(w *world, g *plan.GPU, in *plan.Instance) bool { w.plan.Bound = -1; return true },
	"bound": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		w.plan.Bound = w.plan.GPUsUsed + 1
		return len(w.plan.Unplaced) == 0
	},
	"objective": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		for i := range w.in.Demand {
			w.in.Demand[i].SLOMS = 19
		}
		return true
	},
	"spans": func(w *world, g *plan.GPU, in *plan.Instance) bool {
		w.in.Functions = []function.Function{{Name: in.Function, GPUs: 3}}
		return true
	},
}

func entry(spoil func(g *plan.GPU, e *plan.Interval)) func(*world, *plan.GPU, *plan.Instance) bool {
	return func(w *world, g *plan.GPU, in *plan.Instance) bool {
		if len(g.Schedule) == 0 {
			return false
		}
		spoil(g, &g.Schedule[0])
		return true
	}
}

func unplaced(spoil func(u *plan.Unplaced)) func(*world, *plan.GPU, *plan.Instance) bool {
	return func(w *world, g *plan.GPU, in *plan.Instance) bool {
		if len(w.plan.Unplaced) == 0 {
			return false
		}
		spoil(&w.plan.Unplaced[0])
		return true
	}
}

func TestEveryMutationIsFound(t *testing.T) {
	for what, mutate := range mutations {
		t.Run(what, func(t *testing.T) {
			applied := false
			rapid.Check(t, func(t *rapid.T) {
				w := drawWorld(t)
				if found := Plan(w.plan, w.in); len(found) > 0 {
					t.Fatalf("violations before the mutation: got %+v, want none in\n%+v", found, w.plan)
				}
				g := &w.plan.GPUs[rapid.IntRange(0, len(w.plan.GPUs)-1).Draw(t, "GPU")]
				if !mutate(w, g, &g.Instances[len(g.Instances)-1]) {
					return
				}
				applied = true
				if found := Plan(w.plan, w.in); len(found) == 0 {
					t.Fatalf("violations after the mutation: got none, want at least one in\n%+v", w.plan)
				}
			})
			if !applied {
				t.Error("the mutation was never applied, want it applied in some plans")
			}
		})
	}
}
