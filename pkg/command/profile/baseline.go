package profile

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// baseline is an older profile that a run must not be worse than.
type baseline struct {
	path string
	rows map[cell]profile.Row
	most float64 // worse by so much is allowed, as a fraction
}

// loadBaseline reads the rows that the job will measure again. It is an error
// when there are none: the gate could never trip.
func loadBaseline(env *cli.Env, path string, most float64, j job, model string) (*baseline, error) {
	rows, err := cli.Load(env, path, profile.Read)
	if err != nil {
		return nil, err
	}
	b := &baseline{path: path, most: most, rows: map[cell]profile.Row{}}
	var others []string
	for _, fn := range j.functions {
		for _, c := range j.space.Configs() {
			for _, row := range rows {
				switch {
				case row.Function != fn.Name || row.Config != c:
				case row.GPU != "" && row.GPU != model:
					others = append(others, row.GPU)
				default:
					b.rows[cell{fn.Name, c}] = row
				}
			}
		}
	}
	if len(b.rows) > 0 {
		return b, nil
	}
	if len(others) > 0 {
		slices.Sort(others)
		return nil, fmt.Errorf("--baseline %s is of %s, this run of %s: expected the same model of GPU",
			path, strings.Join(slices.Compact(others), ", "), model)
	}
	return nil, fmt.Errorf("--baseline %s has none of the configurations to be measured", path)
}

// judge compares a row with the older one, if there is one. Worse counts when
// it is by more than is allowed and by more than the noise of the two, as far
// as that is known.
func (b *baseline) judge(row profile.Row) []finding {
	old, ok := b.rows[cell{row.Function, row.Config}]
	if !ok {
		return nil
	}
	out := []finding{b.errors(row, old)}
	if old.ThroughputRPS > 0 {
		out = append(out, b.metric("throughput_rps", row, -1, old.ThroughputRPS, row.ThroughputRPS, old.ThroughputCIRPS, row.ThroughputCIRPS))
	}
	if old.P95MS > 0 {
		out = append(out, b.metric("p95_ms", row, +1, old.P95MS, row.P95MS, old.P95CIMS, row.P95CIMS))
	}
	return out
}

// metric compares one figure; worse is +1 where more is worse, else -1.
func (b *baseline) metric(name string, row profile.Row, worse, before, after, ciBefore, ciAfter float64) finding {
	f := finding{about: aboutBaseline, name: name + " " + cellName(row.Function, row.Config)}
	by := worse * (after - before) / before
	noise, known := math.Hypot(ciBefore, ciAfter)/before, ciBefore > 0 && ciAfter > 0
	if by <= b.most || known && by <= noise {
		return f
	}
	margin := "; its noise is not known"
	if known {
		margin = fmt.Sprintf(" and than the noise of %s%%", percent(noise))
	}
	f.outcome = tripped
	f.text = fmt.Sprintf("%s is %s%% worse %s: %s, was %s: more than %s%%%s", name, percent(by),
		cellName(row.Function, row.Config), number.Plain(after), number.Plain(before), percent(b.most), margin)
	return f
}

// errors compares the shares of requests that failed, in percentage points.
func (b *baseline) errors(row, old profile.Row) finding {
	f := finding{about: aboutBaseline, name: "errors " + cellName(row.Function, row.Config)}
	share := func(r profile.Row) float64 { return float64(r.Errors) / math.Max(1, float64(r.Errors+r.Samples)) }
	if share(row)-share(old) > b.most {
		f.outcome = tripped
		f.text = fmt.Sprintf("errors are %s%% of the requests %s, were %s%%: %s points more than %s",
			percent(share(row)), cellName(row.Function, row.Config), percent(share(old)), percent(share(row)-share(old)), percent(b.most))
	}
	return f
}

// percent prints a fraction as a percentage, with three digits.
func percent(v float64) string { return number.Significant(100*v, 3) }

// percentage is a flag that takes a percentage, with or without its sign, and
// keeps it as a fraction.
type percentage struct {
	value *float64
	set   *bool
}

func (p percentage) Set(text string) error {
	v, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(v >= 0 && v <= 1000) {
		return fmt.Errorf("expected a percentage from 0 to 1000, like 5%%")
	}
	*p.value, *p.set = v/100, true
	return nil
}

func (p percentage) String() string {
	if p.value == nil {
		return ""
	}
	return percent(*p.value) + "%"
}

func (p percentage) Type() string { return "percentage" }
