package gate

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Gate is a condition on a metric, like "p95_ms > 69 at sm_pct=24". A row for which
// it holds does not pass.
type Gate struct {
	metric string
	op     string
	bound  float64
	slo    bool       // the bound is the objective of the row's function
	where  []selector // a row must match all of them
}

// selector is a KEY=VALUE after "at".
type selector struct {
	key   string
	value string
}

// rowMetrics are the metrics of rows. The bool reports whether the row has the
// metric.
var rowMetrics = map[string]func(profile.Row) (float64, bool){
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

// halfWidths has half the width of the 95% confidence interval of each metric that
// has one; 0 is unknown.
var halfWidths = map[string]func(profile.Row) float64{
	"throughput_rps": func(r profile.Row) float64 { return r.ThroughputCIRPS },
	"p95_ms":         func(r profile.Row) float64 { return r.P95CIMS },
	"goodput_rps":    func(r profile.Row) float64 { return r.GoodputCIRPS },
	"efficacy": func(r profile.Row) float64 {
		return r.ThroughputCIRPS / (r.SMPct / 100 * r.Quota) / float64(r.Together())
	},
}

// Figures returns a metric of a measurement and half the width of its 95% confidence
// interval, 0 if that is unknown. Measured is false if the figure does not exist.
type Figures func(metric string) (value, halfWidth float64, measured bool)

// FiguresOf returns the figures of a row. They accept the metrics of RowMetrics.
func FiguresOf(r profile.Row) Figures {
	return func(metric string) (value, halfWidth float64, measured bool) {
		value, measured = rowMetrics[metric](r)
		if of := halfWidths[metric]; of != nil {
			halfWidth = of(r)
		}
		return value, halfWidth, measured
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

// RowMetrics returns the names of the metrics that a row may have, sorted.
func RowMetrics() []string { return slices.Sorted(maps.Keys(rowMetrics)) }

// Parse parses conditions on the given metrics. An error quotes the condition.
func Parse(texts, metrics []string) (gates []Gate, err error) {
	for _, text := range texts {
		g, err := parse(text, metrics)
		if err != nil {
			return nil, err
		}
		gates = append(gates, g)
	}
	return gates, nil
}

// parse parses METRIC OP NUMBER [at KEY=VALUE[,KEY=VALUE]...]. For a latency, NUMBER
// may be "slo".
func parse(text string, metrics []string) (Gate, error) {
	parts := gateSyntax.FindStringSubmatch(text)
	if parts == nil {
		return Gate{}, fmt.Errorf("invalid condition %q: expected METRIC OP NUMBER, like 'p95_ms > 69' or 'p95_ms > 69 at sm_pct=24,quota=0.4'", text)
	}
	g := Gate{metric: parts[1], op: parts[2]}
	if !slices.Contains(metrics, g.metric) {
		return Gate{}, fmt.Errorf("%q: unknown metric %s: expected %s", text, g.metric, strings.Join(metrics, ", "))
	}
	var err error
	if g.slo = parts[3] == "slo"; !g.slo {
		g.bound, err = parseNumber(parts[3])
	} else if !strings.HasSuffix(g.metric, "_ms") {
		err = fmt.Errorf("slo is a latency, but %s is not", g.metric)
	}
	if err != nil {
		return Gate{}, fmt.Errorf("%q: %w", text, err)
	}
	if parts[4] == "" {
		return g, nil
	}
	for one := range strings.SplitSeq(parts[4], ",") {
		s, err := parseSelector(one)
		if err != nil {
			return Gate{}, fmt.Errorf("%q: %w", text, err)
		}
		if slices.ContainsFunc(g.where, func(q selector) bool { return q.key == s.key }) {
			return Gate{}, fmt.Errorf("%q: %s appears twice", text, s.key)
		}
		g.where = append(g.where, s)
	}
	return g, nil
}

func parseSelector(text string) (selector, error) {
	key, value, ok := strings.Cut(text, "=")
	s := selector{key: strings.TrimSpace(key), value: strings.TrimSpace(value)}
	if !ok || !slices.Contains(selectorKeys, s.key) || s.value == "" {
		return s, fmt.Errorf("%q after \"at\": expected KEY=VALUE with a key of %s", text, strings.Join(selectorKeys, ", "))
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

// UsesSLO reports whether the bound is the objective of the row's function.
func (g Gate) UsesSLO() bool { return g.slo }

// Selectors returns the condition after "at", like "sm_pct=24,quota=0.4"; empty if
// the gate applies to all rows.
func (g Gate) Selectors() string {
	return strings.Join(lists.Map(g.where, func(s selector) string { return s.key + "=" + s.value }), ",")
}

// String returns the gate in the form that Parse accepts.
func (g Gate) String() string {
	bound := number.Plain(g.bound)
	if g.slo {
		bound = "slo"
	}
	s := fmt.Sprintf("%s %s %s", g.metric, g.op, bound)
	if len(g.where) > 0 {
		s += " at " + g.Selectors()
	}
	return s
}

// matches reports whether the gate applies to a configuration of a function.
func (g Gate) matches(name string, c profile.Config) bool {
	have := map[string]string{
		"function": name, "sm_pct": number.Plain(c.SMPct), "quota": number.Plain(c.Quota), "batch": strconv.Itoa(c.Batch),
	}
	return !slices.ContainsFunc(g.where, func(s selector) bool { return have[s.key] != s.value })
}

// MatchesAny reports whether the gate applies to any configuration of the functions.
// A gate that does not is a mistake, since it can never trip.
func (g Gate) MatchesAny(fns []function.Function, space search.Space) bool {
	for _, fn := range fns {
		if slices.ContainsFunc(space.Configs(), func(c profile.Config) bool { return g.matches(fn.Name, c) }) {
			return true
		}
	}
	return false
}

// stableMetrics are the metrics that an unstable measurement still determines: counts,
// and memory in use.
var stableMetrics = []string{"error_pct", "errors", "gpu_mem_mib", "samples", "unstable"}

// Judge applies the gate to the figures of a subject whose objective is sloMS (in ms,
// 0 is none). The gate trips if the condition holds for the whole 95% confidence
// interval of the metric, where that is known. The finding is doubtful if the
// condition holds for a part of the interval only, if it holds for figures that are
// unstable, or if it is about a goodput that did not settle.
func (g Gate) Judge(subject string, figures Figures, sloMS float64) Finding {
	f := Finding{Subject: FailIf, Name: g.String() + " for " + subject}
	bound := g.bound
	if g.slo {
		bound = sloMS
	}
	value, halfWidth, measured := figures(g.metric)
	if g.op == "==" || g.op == "!=" {
		halfWidth = 0
	}
	holds := func(v float64) bool { return comparisons[g.op](v, bound) }
	low, high := holds(value-halfWidth), holds(value+halfWidth)
	instability, _, _ := figures("unstable")
	unstable := instability > 0 && !slices.Contains(stableMetrics, g.metric)
	is := number.Plain(value)
	if halfWidth > 0 {
		is += " ± " + number.Plain(halfWidth)
	}
	if g.slo {
		is += ", slo " + number.Plain(bound)
	}
	switch {
	case !measured && unstable && strings.HasPrefix(g.metric, "goodput_"):
		f.Verdict, f.Text = Doubtful, fmt.Sprintf("%s: the goodput of %s did not settle, so the result is uncertain: measure for longer with --duration", g, subject)
	case !measured:
		f.Verdict, f.Text = Unknown, fmt.Sprintf("%s: %s was not measured for %s", g, g.metric, subject)
	case g.slo && sloMS <= 0:
		f.Verdict, f.Text = Unknown, fmt.Sprintf("%s: %s has no slo", g, subject)
	case low && high && unstable:
		f.Verdict, f.Text = Doubtful, fmt.Sprintf("%s: it is %s for %s, which is unstable, so the result is uncertain: measure for longer with --duration", g, is, subject)
	case low && high:
		f.Verdict, f.Text = Tripped, fmt.Sprintf("%s: it is %s for %s", g, is, subject)
	case low || high:
		f.Verdict, f.Text = Doubtful, fmt.Sprintf("%s: it is %s for %s, so the result is uncertain: measure for longer with --duration", g, is, subject)
	}
	return f
}
