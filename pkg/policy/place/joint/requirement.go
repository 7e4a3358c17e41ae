package joint

import (
	"cmp"
	"math"
	"slices"
)

// requirement holds the demand to serve, and the rates that one GPU can serve.
type requirement struct {
	p       *Problem
	demand  []float64 // by function: requests a second, as wholeDemands returns them
	solo    []float64 // by function: the most that a GPU with nothing else serves of it
	minSolo float64   // the least of solo that is above 0
}

// newRequirement returns a requirement whose solo rates are yet to be set.
func newRequirement(p *Problem) *requirement {
	return &requirement{p: p, demand: wholeDemands(p), solo: make([]float64, len(p.Funcs)), minSolo: math.Inf(1)}
}

// setSolo records that one GPU serves rate requests a second of a function.
func (t *requirement) setSolo(f int, rate float64) {
	if rate > 0 {
		t.solo[f] = rate
		t.minSolo = min(t.minSolo, rate)
	}
}

// wholeDemands returns the demand of each function. If a function has only one configuration,
// its demand is rounded up to what whole instances serve.
func wholeDemands(p *Problem) []float64 {
	d := make([]float64, len(p.Funcs))
	for f := range d {
		d[f] = p.Funcs[f].Demand
		if options := p.Funcs[f].Options; len(options) == 1 && options[0].Rate > 0 {
			whole := options[0].Rate * float64(max(1, p.Funcs[f].Span))
			d[f] = whole * max(1, math.Ceil(d[f]/whole*(1-tolerance)))
		}
	}
	return d
}

// row is an option of a function.
type row struct {
	fn, opt int
	o       Option
}

// rows returns the options that may serve the demand, function by function.
func (t *requirement) rows() (rows []row) {
	for f := range t.p.Funcs {
		for i, o := range t.p.Funcs[f].Options {
			if t.solo[f] > 0 && t.demand[f] > 0 && slices.Contains(o.On, true) {
				rows = append(rows, row{f, i, o})
			}
		}
	}
	return rows
}

// withMinPrices returns prices of which none is 0: a function that costs nothing in the
// program gets a low price.
func (t *requirement) withMinPrices(price []float64) []float64 {
	out := slices.Clone(price)
	for f := range out {
		if t.solo[f] > 0 {
			out[f] = max(out[f], minPrice/t.solo[f])
		}
	}
	return out
}

// minPrice is that price, as a part of the price of a function with GPUs of its own.
const minPrice = 0.05

// widestSpan returns the largest span of a function that can be served. No fewer GPUs serve
// all.
func (t *requirement) widestSpan() int {
	n := 0
	for f := range t.p.Funcs {
		if t.solo[f] > 0 && t.p.Funcs[f].Demand > 0 {
			n = max(n, t.p.span(f))
		}
	}
	return n
}

// spanning returns the functions that span n GPUs, those with the largest densest
// configuration first.
func (t *requirement) spanning(n int) (out []int) {
	size := make([]float64, len(t.p.Funcs))
	for f := range t.p.Funcs {
		if t.p.span(f) != n || t.solo[f] == 0 {
			continue
		}
		out = append(out, f)
		if options := t.byDensity(f, t.p.Funcs[f].Demand); len(options) > 0 {
			size[f] = t.p.share(&t.p.Funcs[f].Options[options[0].opt])
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(size[b], size[a]) })
	return out
}

// byDensity returns the options of a function, ordered by the part of remaining that an
// instance serves for its share of a GPU, most first.
func (t *requirement) byDensity(f int, remaining float64) (out []pick) {
	for i := range t.p.Funcs[f].Options {
		o := &t.p.Funcs[f].Options[i]
		if slices.Contains(o.On, true) {
			out = append(out, pick{f, i, min(o.Rate, remaining/float64(t.p.span(f))) / t.p.share(o)})
		}
	}
	slices.SortStableFunc(out, func(a, b pick) int { return cmp.Compare(b.density, a.density) })
	return out
}
