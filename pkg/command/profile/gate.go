package profile

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

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
	pins   []pin // the row must have all of these
}

// pin is KEY=VALUE after "at".
type pin struct {
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
	"load_ms":           func(r profile.Row) (float64, bool) { return r.LoadMS, r.LoadMS > 0 },
}

var comparisons = map[string]func(a, b float64) bool{
	">":  func(a, b float64) bool { return a > b },
	">=": func(a, b float64) bool { return a >= b },
	"<":  func(a, b float64) bool { return a < b },
	"<=": func(a, b float64) bool { return a <= b },
	"==": func(a, b float64) bool { return a == b },
	"!=": func(a, b float64) bool { return a != b },
}

var pinKeys = []string{"function", "sm_pct", "quota", "batch"}

var gateForm = regexp.MustCompile(`^\s*([A-Za-z0-9_]+)\s*(>=|<=|==|!=|>|<)\s*(\S+)(?:\s+at\s+(\S.*?))?\s*$`)

// parseGate reads METRIC OP NUMBER [at KEY=VALUE[,KEY=VALUE]…].
func parseGate(text string) (gate, error) {
	parts := gateForm.FindStringSubmatch(text)
	if parts == nil {
		return gate{}, fmt.Errorf("%q is no condition: expected one like 'p95_ms > 69' or 'p95_ms > 69 at sm_pct=24,quota=0.4'", text)
	}
	g := gate{metric: parts[1], op: parts[2]}
	if metrics[g.metric] == nil {
		return gate{}, fmt.Errorf("%q: %s is not measured: expected one of %s", text, g.metric,
			strings.Join(slices.Sorted(maps.Keys(metrics)), ", "))
	}
	var err error
	if g.bound, err = parseNumber(parts[3]); err != nil {
		return gate{}, fmt.Errorf("%q: %w", text, err)
	}
	if parts[4] == "" {
		return g, nil
	}
	for one := range strings.SplitSeq(parts[4], ",") {
		p, err := parsePin(one)
		if err != nil {
			return gate{}, fmt.Errorf("%q: %w", text, err)
		}
		if slices.ContainsFunc(g.pins, func(q pin) bool { return q.key == p.key }) {
			return gate{}, fmt.Errorf("%q: %s is given twice", text, p.key)
		}
		g.pins = append(g.pins, p)
	}
	return g, nil
}

func parsePin(text string) (pin, error) {
	key, value, ok := strings.Cut(text, "=")
	p := pin{key: strings.TrimSpace(key), value: strings.TrimSpace(value)}
	if !ok || !slices.Contains(pinKeys, p.key) || p.value == "" {
		return p, fmt.Errorf("%q after at: expected KEY=VALUE with a key of %s", text, strings.Join(pinKeys, ", "))
	}
	if p.key == "function" {
		return p, nil
	}
	n, err := parseNumber(p.value)
	p.value = number.Plain(n)
	return p, err
}

func parseNumber(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}

// place prints the pins: sm_pct=24,quota=0.4.
func (g gate) place() string {
	pins := make([]string, len(g.pins))
	for i, p := range g.pins {
		pins[i] = p.key + "=" + p.value
	}
	return strings.Join(pins, ",")
}

// String prints the gate as parseGate reads it.
func (g gate) String() string {
	s := fmt.Sprintf("%s %s %s", g.metric, g.op, number.Plain(g.bound))
	if len(g.pins) > 0 {
		s += " at " + g.place()
	}
	return s
}

// covers tells whether the gate looks at a configuration of a function.
func (g gate) covers(name string, c profile.Config) bool {
	have := map[string]string{
		"function": name, "sm_pct": number.Plain(c.SMPct), "quota": number.Plain(c.Quota), "batch": strconv.Itoa(c.Batch),
	}
	return !slices.ContainsFunc(g.pins, func(p pin) bool { return have[p.key] != p.value })
}

// reaches tells whether the gate looks at anything that will be measured. One
// that does not can never trip, so it must be a mistake.
func (g gate) reaches(fns []function.Function, space search.Space) bool {
	for _, fn := range fns {
		if slices.ContainsFunc(space.Configs(), func(c profile.Config) bool { return g.covers(fn.Name, c) }) {
			return true
		}
	}
	return false
}

// judge says why the gate trips at the row, if it does, or that the row does
// not tell.
func (g gate) judge(r profile.Row) (trip, unknown string) {
	if !g.covers(r.Function, r.Config) {
		return "", ""
	}
	value, measured := metrics[g.metric](r)
	switch {
	case !measured:
		return "", fmt.Sprintf("%s: %s was not measured %s", g, g.metric, cellName(r.Function, r.Config))
	case comparisons[g.op](value, g.bound):
		return fmt.Sprintf("%s: it is %s %s", g, number.Plain(value), cellName(r.Function, r.Config)), ""
	}
	return "", ""
}

// cellName is how messages call a configuration.
func cellName(fn string, c profile.Config) string {
	return fmt.Sprintf("for %s at sm_pct %s, quota %s, batch %d", fn, number.Plain(c.SMPct), number.Plain(c.Quota), c.Batch)
}
