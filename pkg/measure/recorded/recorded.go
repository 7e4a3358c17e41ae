// Package recorded searches recorded results instead of measuring: it replays the trials of
// a search from the rows of a profile, and picks the best measurement of another tool's
// report.
//
// The commands gfaas-profile search, report and import call the package. Its functions are
// pure.
package recorded

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Space returns the search space that has exactly the configurations of the rows.
func Space(rows []profile.Row) search.Space {
	s := search.Space{Only: []profile.Config{}}
	for _, r := range rows {
		s.Only = append(s.Only, r.Config)
		s.SMPct, s.Quota, s.Batch = append(s.SMPct, r.SMPct), append(s.Quota, r.Quota), append(s.Batch, r.Batch)
	}
	return s
}

// Replay answers the trials of a strategy from the rows of one function on one model of
// GPU, until the strategy ends. It returns the number of trials; a configuration without
// a row does not count. It calls tried after each trial, with its number and before the
// strategy learns the row.
func Replay(s search.Strategy, rows []profile.Row, tried func(trial int, row profile.Row)) (trials int) {
	table := map[profile.Config]profile.Row{}
	for _, r := range rows {
		table[r.Config] = r
	}
	for c, ok := s.Next(); ok; c, ok = s.Next() {
		row, known := table[c]
		if known {
			trials++
			tried(trials, row)
		}
		s.Record(c, row, known)
	}
	return trials
}

// Best returns the configuration of the rows, of one function on one model of GPU, that
// meets the goal best.
func Best(rows []profile.Row, goal search.Goal) (search.Choice, error) {
	s, err := search.New("grid", Space(rows), goal)
	if err != nil {
		return search.Choice{}, err
	}
	Replay(s, rows, func(int, profile.Row) {})
	return s.Choice(), nil
}

// Group is the rows of one function on one model of GPU.
type Group struct {
	Function, GPU string
	Rows          []profile.Row
}

// Groups splits rows by function and model of GPU, in the order of the first row of each.
func Groups(rows []profile.Row) (groups []Group) {
	for _, r := range rows {
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Function == r.Function && g.GPU == r.GPU })
		if i < 0 {
			i = len(groups)
			groups = append(groups, Group{Function: r.Function, GPU: r.GPU})
		}
		groups[i].Rows = append(groups[i].Rows, r)
	}
	return groups
}

// Highest returns the measurement with the highest throughput whose p95 latency is within
// sloMS, in ms; 0 accepts any latency. If none is within sloMS, ok is false and best is the
// measurement with the lowest p95 latency. The list must not be empty.
func Highest(list []profile.Measurement, sloMS float64) (best profile.Measurement, ok bool) {
	within := list
	if sloMS > 0 {
		within = slices.DeleteFunc(slices.Clone(list), func(m profile.Measurement) bool { return m.P95MS > sloMS })
	}
	if len(within) == 0 {
		return slices.MinFunc(list, func(a, b profile.Measurement) int { return cmp.Compare(a.P95MS, b.P95MS) }), false
	}
	return slices.MaxFunc(within, func(a, b profile.Measurement) int { return cmp.Compare(a.ThroughputRPS, b.ThroughputRPS) }), true
}
