package search

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. Each file has a table, a line of dashes, and
// the trials and choices of the searches. The table begins with lines "search NAME, ...",
// "slo MS" and "error E". A row may have "fails" instead of its measurements.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", func(text string) (string, error) {
		const line = "\n----\n"
		table, _, _ := strings.Cut(text, line)
		return table + line + searches(t, table), nil
	})
}

func searches(t *testing.T, input string) string {
	var names []string
	var goal Goal
	space := Space{Only: []profile.Config{}}
	table := map[profile.Config]profile.Row{}
	for line := range strings.Lines(input) {
		f := strings.Fields(strings.ReplaceAll(line, ",", " "))
		switch {
		case len(f) == 0 || f[0] == "#" || f[0] == "sm":
		case f[0] == "search":
			names = f[1:]
		case f[0] == "slo":
			goal.SLOMS = parsed(t, f[1])
		case f[0] == "error":
			goal.Error = parsed(t, f[1])
		case f[0] == "check-quota":
			goal.CheckQuota = true
		default:
			c := profile.Config{SMPct: parsed(t, f[0]), Quota: parsed(t, f[1]), Batch: int(parsed(t, f[2]))}
			space.Only = append(space.Only, c)
			space.SMPct, space.Quota, space.Batch = append(space.SMPct, c.SMPct), append(space.Quota, c.Quota), append(space.Batch, c.Batch)
			if f[3] != "fails" {
				table[c] = profile.Row{Config: c, ThroughputRPS: parsed(t, f[3]), P95MS: parsed(t, f[4])}
			}
		}
	}
	var out strings.Builder
	for _, how := range names {
		trials, choice := drive(t, how, space, goal, table)
		fmt.Fprintf(&out, "%s\n", how)
		for _, one := range trials {
			result := "fails"
			if one.ok {
				result = fmt.Sprintf("%s rps, p95 %s ms, efficacy %s", num(one.row.ThroughputRPS), num(one.row.P95MS), num(one.row.Efficacy()))
			}
			fmt.Fprintf(&out, "  %s\n    because %s\n    %s\n", describe(one.config), one.reason, result)
		}
		if choice.OK {
			fmt.Fprintf(&out, "  chosen after %d trials: %s, limit %s\n    because %s\n", len(trials), describe(choice.Row.Config), num(choice.LimitSMPct), choice.Reason)
		} else {
			fmt.Fprintf(&out, "  nothing chosen after %d trials\n    because %s\n", len(trials), choice.Reason)
		}
	}
	return out.String()
}

func parsed(t *testing.T, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
