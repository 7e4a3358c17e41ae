package outlook

import (
	"fmt"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// section returns a section whose only configuration is half a GPU with 10 requests per
// second.
func section(name string) Section {
	row := profile.Row{Function: name, Config: profile.Config{SMPct: 50, Quota: 1, Batch: 1}, ThroughputRPS: 10, P95MS: 20}
	return Section{Function: name, Rows: []profile.Row{row}, Choice: search.Choice{OK: true, Row: row}}
}

// used returns the GPUs of each plan.
func used(o Outlook) (out []int) {
	for _, p := range o.Plans {
		out = append(out, p.GPUsUsed)
	}
	return out
}

func TestPlan(t *testing.T) {
	none := section("c")
	none.Choice = search.Choice{}
	for name, c := range map[string]struct {
		request   Request
		want      string // GPUs of the plans of each section; of the plans for shared GPUs; without sharing
		unplanned int
	}{
		"one, ten and a hundred instances": {Request{Sections: []Section{section("a"), section("b")}, TimeLimit: time.Minute}, "[[1 5 50] [1 5 50]] [1 10 100] [2 10 100]", 0},
		"rates":                            {Request{Sections: []Section{section("a"), section("b")}, RPS: []float64{10}, TimeLimit: time.Minute}, "[[1] [1]] [1] [2]", 0},
		"a demand":                         {Request{Sections: []Section{section("a"), section("b")}, Demand: []plan.Demand{{Function: "b", RPS: 40}}, TimeLimit: time.Minute}, "[[] [2]]", 0},
		"an empty demand":                  {Request{Sections: []Section{section("a"), section("b")}, Demand: []plan.Demand{}, TimeLimit: time.Minute}, "[[] []]", 0},
		"no choice":                        {Request{Sections: []Section{section("a"), none}, RPS: nil, TimeLimit: time.Minute}, "[[1 5 50] []]", 0},
		"no time":                          {Request{Sections: []Section{section("a"), section("b")}, TimeLimit: -time.Second}, "[[] []] [1] []", 2},
	} {
		t.Run(name, func(t *testing.T) {
			steps := 0
			c.request.Model, c.request.Arrivals, c.request.Planned = plan.ModelRect, func(*place.Input) {}, func() { steps++ }
			res, err := Plan(c.request)
			if err != nil {
				t.Fatal(err)
			}
			var each [][]int
			for _, o := range res.Sections {
				each = append(each, used(o))
			}
			got := fmt.Sprint(each)
			for _, f := range res.Shared {
				got += fmt.Sprint(" ", used(f.Outlook), " ", f.UnsharedGPUs)
			}
			if got != c.want || res.Unplanned != c.unplanned {
				t.Errorf("got %s, %d unplanned; want %s, %d", got, res.Unplanned, c.want, c.unplanned)
			}
			if steps != c.request.Steps() {
				t.Errorf("%d steps, want %d", steps, c.request.Steps())
			}
		})
	}
}

func TestObjective(t *testing.T) {
	demand := []plan.Demand{{Function: "a", SLOMS: 5}, {Function: "b"}}
	functions := []function.Function{{Name: "a", SLO: time.Second}, {Name: "b", SLO: 20 * time.Millisecond}}
	for name, want := range map[string]float64{"a": 5, "b": 20, "c": 70} {
		if got := Objective(name, demand, functions, 70*time.Millisecond); got != want {
			t.Errorf("%s: got %v ms, want %v ms", name, got, want)
		}
	}
}
