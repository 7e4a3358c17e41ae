package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

// tie is the relative difference up to which two latencies count as equal.
const tie = 0.001

// winners returns sentences about the policies with the lowest latency, and how much lower it is than
// that of the next policy. It compares policies that keep models only with each other (see view.Both).
func winners(results []*sim.Result) (sentences []string) {
	for _, group := range []struct {
		name   string
		models bool
	}{{"Among the policies that keep instances, ", false}, {"Among the policies that keep models, ", true}} {
		compared := lists.Filter(results, func(r *sim.Result) bool {
			return queue.OneAtATime(r.Policy) == group.models && r.Completed > 0
		})
		if len(compared) < 2 {
			continue
		}
		prefix := ""
		if len(compared) < len(results) {
			prefix = group.name
		}
		sentences = append(sentences,
			winner(prefix, "mean latency", compared, func(r *sim.Result) float64 { return r.LatencyMS.Mean }),
			winner(prefix, "p99 latency", compared, func(r *sim.Result) float64 { return r.LatencyMS.P99 }))
	}
	return sentences
}

// winner returns a sentence about the lowest latency in the results.
func winner(prefix, metric string, results []*sim.Result, of func(*sim.Result) float64) string {
	sorted := slices.Clone(results)
	slices.SortStableFunc(sorted, func(a, b *sim.Result) int { return cmp.Compare(of(a), of(b)) })
	best := of(sorted[0])
	n := 1 // policies with the lowest latency
	for n < len(sorted) && of(sorted[n]) <= best*(1+tie) {
		n++
	}
	names := lists.Map(sorted[:n], func(r *sim.Result) string { return r.Policy })
	text := ""
	switch {
	case n == len(sorted):
		text = fmt.Sprintf("all have the same %s, %s", metric, formatMS(best))
	case n == 1:
		text = fmt.Sprintf("%s has the lowest %s, %s", names[0], metric, formatMS(best))
	default:
		text = fmt.Sprintf("%s and %s have the lowest %s, %s", strings.Join(names[:n-1], ", "), names[n-1], metric, formatMS(best))
	}
	if n < len(sorted) {
		next := of(sorted[n])
		text += fmt.Sprintf(": %s less than %s, the next policy (%s)", number.Percent(1-best/next, 1), sorted[n].Policy, formatMS(next))
	}
	text = prefix + text + "."
	if strings.HasPrefix(text, "all ") {
		text = "All policies" + strings.TrimPrefix(text, "all")
	}
	return text
}
