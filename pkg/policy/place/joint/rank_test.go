package joint

import (
	"testing"
)

// TestRank checks that too few GPUs serve the functions with the most requests per GPU, whatever the
// spans of their instances.
func TestRank(t *testing.T) {
	// fn returns a function whose instance has the given share of each GPU's SMs and serves rate
	// requests per second on each.
	fn := func(span int, share float64, rate, demand float64) Func {
		return Func{Demand: demand, Model: NoModel, Span: span, Options: []Option{{W: One, H: int64(share * One), Mem: 1, Rate: rate, On: []bool{true}}}}
	}
	for name, c := range map[string]struct {
		funcs []Func
		nodes []int
		want  float64 // served requests per second
	}{
		"one request a second of 201":   {[]Func{fn(2, 1, 0.5, 1), fn(1, 1, 100, 200)}, []int{2}, 200},
		"the wider serves less":         {[]Func{fn(3, 1, 1, 3), fn(2, 1, 10, 20), fn(1, 1, 1, 1)}, []int{3}, 21},
		"between two":                   {[]Func{fn(1, 1, 100, 100), fn(2, 1, 10, 20), fn(1, 1, 1, 4)}, []int{3}, 120},
		"the span serves most":          {[]Func{fn(2, 1, 100, 200), fn(1, 1, 10, 40)}, []int{2}, 200},
		"some of its instances":         {[]Func{fn(2, 1, 5, 40), fn(1, 1, 100, 200)}, []int{4}, 210},
		"beside others":                 {[]Func{fn(2, 0.2, 0.5, 1), fn(1, 0.8, 100, 200)}, []int{2}, 201},
		"two of one span":               {[]Func{fn(2, 1, 1, 2), fn(2, 1, 50, 100)}, []int{2}, 100},
		"a node that is too small":      {[]Func{fn(2, 1, 100, 200), fn(1, 1, 10, 40)}, []int{1, 1}, 20},
		"nodes":                         {[]Func{fn(2, 1, 1, 4), fn(1, 1, 10, 20)}, []int{2, 2}, 22},
		"the larger part of the demand": {[]Func{fn(4, 1, 3, 12), fn(1, 0.5, 3, 100)}, []int{4}, 24},
	} {
		for _, tokens := range []bool{false, true} {
			count, wanted := 0, 0.0
			for _, n := range c.nodes {
				count += n
			}
			for _, f := range c.funcs {
				wanted += f.Demand
			}
			p := Problem{Funcs: c.funcs, Classes: []Class{{Room: 1000, Count: count, Nodes: c.nodes}}, Tokens: tokens}
			sol := Solve(p, Options{Work: 300_000})
			remaining := 0.0
			for _, l := range sol.Unserved {
				remaining += l
			}
			if got := wanted - remaining; got < c.want-1e-6 || got > c.want+1e-6 {
				t.Errorf("%s, tokens %v: %v requests a second are served, want %v", name, tokens, got, c.want)
			}
		}
	}
}
