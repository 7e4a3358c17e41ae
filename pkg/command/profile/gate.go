package profile

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// gate is a condition of --fail-if: it trips at a row where the condition
// holds.
type gate struct {
	metric string
	op     string
	bound  float64
	slo    bool       // the bound is each function's objective
	where  []selector // looks at rows that match all of these
}

// selector is KEY=VALUE after "at": the rows that a gate looks at have it.
type selector struct {
	key   string
	value string
}

// metrics are what a gate may look at. The flag tells whether the row has it.
var metrics = map[string]func(profile.Row) (float64, bool){
	"throughput_rps":    func(r profile.Row) (float64, bool) { return r.ThroughputRPS, true },
	"p50_ms":            func(r profile.Row) (float64, bool) { return r.P50MS, true },
	"p95_ms":            func(r profile.Row) (float64, bool) { return r.P95MS, true },
	"p99_ms":            func(r profile.Row) (float64, bool) { return r.P99MS, true },
	"errors":            func(r profile.Row) (float64, bool) { return float64(r.Errors), true },
	"samples":           func(r profile.Row) (float64, bool) { return float64(r.Samples), true },
	"efficacy":          func(r profile.Row) (float64, bool) { return r.Efficacy(), true },
	"gpu_mem_mib":       func(r profile.Row) (float64, bool) { return r.GPUMemMiB, r.GPUMemMiB > 0 },
	"gpu_util_pct":      func(r profile.Row) (float64, bool) { return r.GPUUtilPct, r.GPUUtilPct > 0 },
	"sm_occupancy_pct":  func(r profile.Row) (float64, bool) { return r.SMOccupancyPct, r.SMOccupancyPct > 0 },
	"power_w":           func(r profile.Row) (float64, bool) { return r.PowerW, r.PowerW > 0 },
	"unstable":          func(r profile.Row) (float64, bool) { return float64(r.Unstable), true },
	"throughput_ci_rps": func(r profile.Row) (float64, bool) { return r.ThroughputCIRPS, r.ThroughputCIRPS > 0 },
	"p95_ci_ms":         func(r profile.Row) (float64, bool) { return r.P95CIMS, r.P95CIMS > 0 },
	"warm_ms":           func(r profile.Row) (float64, bool) { return r.WarmMS, r.WarmMS > 0 },
	"cold_ms":           func(r profile.Row) (float64, bool) { return r.ColdMS, r.ColdMS > 0 },
	"goodput_rps":       func(r profile.Row) (float64, bool) { return r.GoodputRPS, r.GoodputKnown },
	"goodput_ci_rps":    func(r profile.Row) (float64, bool) { return r.GoodputCIRPS, r.GoodputCIRPS > 0 },
	"idle_p95_ms":       func(r profile.Row) (float64, bool) { return r.IdleP95MS, r.IdleP95MS > 0 },
	"load_ms":           func(r profile.Row) (float64, bool) { return r.LoadMS, r.LoadMS > 0 },
}

// halfWidths are half the widths of the 95% confidence intervals of the metrics
// that have one; 0 is not known.
var halfWidths = map[string]func(profile.Row) float64{
	"throughput_rps": func(r profile.Row) float64 { return r.ThroughputCIRPS },
	"p95_ms":         func(r profile.Row) float64 { return r.P95CIMS },
	"goodput_rps":    func(r profile.Row) float64 { return r.GoodputCIRPS },
	"efficacy":       func(r profile.Row) float64 { return r.ThroughputCIRPS / (r.SMPct / 100 * r.Quota) },
}

// Figures tell a metric of what was measured and half the width of its 95%
// confidence interval, 0 where that is not known; false when it was not measured.
type Figures func(metric string) (value, half float64, measured bool)

// figuresOf are those of a row.
func figuresOf(r profile.Row) Figures {
	return func(metric string) (value, half float64, measured bool) {
		value, measured = metrics[metric](r)
		if of := halfWidths[metric]; of != nil {
			half = of(r)
		}
		return value, half, measured
	}
}

var comparisons = map[string]func(a, b float64) bool{
	">":  func(a, b float64) bool { return a > b },
	">=": func(a, b float64) bool { return a >= b },
	"<":  func(a, b float64) bool { return a < b },
	"<=": func(a, b float64) bool { return a <= b },
	"==": func(a, b float64) bool { return a == b },
	"!=": func(a, b float64) bool { return a != b },
}

var selectorKeys = []string{"function", "sm_pct", "quota", "batch"}

var gateSyntax = regexp.MustCompile(`^\s*([A-Za-z0-9_]+)\s*(>=|<=|==|!=|>|<)\s*(\S+)(?:\s+at\s+(\S.*?))?\s*$`)

// parseGates reads the conditions of --fail-if, which are of the metrics known.
func parseGates(texts, known []string) (gates []gate, err error) {
	for _, text := range texts {
		g, err := parseGate(text, known)
		if err != nil {
			return nil, cli.Usagef("--fail-if: %w", err)
		}
		gates = append(gates, g)
	}
	return gates, nil
}

// ofRows are the metrics that a row may have.
var ofRows = slices.Sorted(maps.Keys(metrics))

// parseGate reads METRIC OP NUMBER [at KEY=VALUE[,KEY=VALUE]…], the metric one of
// those known; of a latency NUMBER may be slo.
func parseGate(text string, known []string) (gate, error) {
	parts := gateSyntax.FindStringSubmatch(text)
	if parts == nil {
		return gate{}, fmt.Errorf("%q is no condition: expected one like 'p95_ms > 69' or 'p95_ms > 69 at sm_pct=24,quota=0.4'", text)
	}
	g := gate{metric: parts[1], op: parts[2]}
	if !slices.Contains(known, g.metric) {
		return gate{}, fmt.Errorf("%q: %s is not measured: expected one of %s", text, g.metric, strings.Join(known, ", "))
	}
	var err error
	if g.slo = parts[3] == "slo"; !g.slo {
		g.bound, err = parseNumber(parts[3])
	} else if !strings.HasSuffix(g.metric, "_ms") {
		err = fmt.Errorf("slo is a latency, %s is none", g.metric)
	}
	if err != nil {
		return gate{}, fmt.Errorf("%q: %w", text, err)
	}
	if parts[4] == "" {
		return g, nil
	}
	for one := range strings.SplitSeq(parts[4], ",") {
		s, err := parseSelector(one)
		if err != nil {
			return gate{}, fmt.Errorf("%q: %w", text, err)
		}
		if slices.ContainsFunc(g.where, func(q selector) bool { return q.key == s.key }) {
			return gate{}, fmt.Errorf("%q: %s is given twice", text, s.key)
		}
		g.where = append(g.where, s)
	}
	return g, nil
}

func parseSelector(text string) (selector, error) {
	key, value, ok := strings.Cut(text, "=")
	s := selector{key: strings.TrimSpace(key), value: strings.TrimSpace(value)}
	if !ok || !slices.Contains(selectorKeys, s.key) || s.value == "" {
		return s, fmt.Errorf("%q after at: expected KEY=VALUE with a key of %s", text, strings.Join(selectorKeys, ", "))
	}
	if s.key == "function" {
		return s, nil
	}
	n, err := parseNumber(s.value)
	s.value = number.Plain(n)
	return s, err
}

func parseNumber(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}

// selectors prints them: sm_pct=24,quota=0.4.
func (g gate) selectors() string {
	texts := make([]string, len(g.where))
	for i, s := range g.where {
		texts[i] = s.key + "=" + s.value
	}
	return strings.Join(texts, ",")
}

// String prints the gate as parseGate reads it.
func (g gate) String() string {
	bound := number.Plain(g.bound)
	if g.slo {
		bound = "slo"
	}
	s := fmt.Sprintf("%s %s %s", g.metric, g.op, bound)
	if len(g.where) > 0 {
		s += " at " + g.selectors()
	}
	return s
}

// matches says whether the gate looks at a configuration of a function.
func (g gate) matches(name string, c profile.Config) bool {
	have := map[string]string{
		"function": name, "sm_pct": number.Plain(c.SMPct), "quota": number.Plain(c.Quota), "batch": strconv.Itoa(c.Batch),
	}
	return !slices.ContainsFunc(g.where, func(s selector) bool { return have[s.key] != s.value })
}

// matchesAny says whether the gate looks at anything that will be measured. One
// that does not can never trip, so it must be a mistake.
func (g gate) matchesAny(fns []function.Function, space search.Space) bool {
	for _, fn := range fns {
		if slices.ContainsFunc(space.Configs(), func(c profile.Config) bool { return g.matches(fn.Name, c) }) {
			return true
		}
	}
	return false
}

// whateverTheLoad are the metrics of which an unstable measurement says as much as any:
// counts, and the memory in use.
var whateverTheLoad = []string{"error_pct", "errors", "gpu_mem_mib", "samples", "unstable"}

// judge looks at what was measured of something with that objective (ms, 0 is
// none), if the gate is of it. It trips when it holds in all of the 95% confidence interval, where
// one is known; what holds only in a part of it is in doubt, and so is what holds for
// figures that are unstable, or is about a goodput that did not settle.
func (g gate) judge(of string, seen Figures, sloMS float64) finding {
	f := finding{about: aboutGates, name: g.String() + " for " + of}
	bound := g.bound
	if g.slo {
		bound = sloMS
	}
	value, half, measured := seen(g.metric)
	if g.op == "==" || g.op == "!=" {
		half = 0
	}
	holds := func(v float64) bool { return comparisons[g.op](v, bound) }
	low, high := holds(value-half), holds(value+half)
	shaky, _, _ := seen("unstable")
	unstable := shaky > 0 && !slices.Contains(whateverTheLoad, g.metric)
	is := number.Plain(value)
	if half > 0 {
		is += " ± " + number.Plain(half)
	}
	if g.slo {
		is += ", slo " + number.Plain(bound)
	}
	switch {
	case !measured && unstable && strings.HasPrefix(g.metric, "goodput_"):
		f.verdict, f.text = doubtful, fmt.Sprintf("%s: the goodput did not settle for %s, so it may hold or not: measure for longer", g, of)
	case !measured:
		f.verdict, f.text = unknown, fmt.Sprintf("%s: %s was not measured for %s", g, g.metric, of)
	case g.slo && sloMS <= 0:
		f.verdict, f.text = unknown, fmt.Sprintf("%s: there is no slo for %s", g, of)
	case low && high && unstable:
		f.verdict, f.text = doubtful, fmt.Sprintf("%s: it is %s for %s, which is unstable, so it may hold or not: measure for longer", g, is, of)
	case low && high:
		f.verdict, f.text = tripped, fmt.Sprintf("%s: it is %s for %s", g, is, of)
	case low || high:
		f.verdict, f.text = doubtful, fmt.Sprintf("%s: it is %s for %s, so it may hold or not: measure for longer", g, is, of)
	}
	return f
}
