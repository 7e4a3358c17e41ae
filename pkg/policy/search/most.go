package search

import (
	"fmt"
	"strings"
)

// Most returns how many configurations of the space a search measures at most, given that
// each can be measured. It is surely no more whatever they turn out to be, and likely no
// more: the search fast ends after a few trials once a configuration meets the goal, so
// that likely holds if one of the first does.
func Most(name string, s Space, goal Goal) (likely, surely int, err error) {
	if strategies[name] == nil {
		return 0, 0, fmt.Errorf("search %q is not available: expected %s", name, strings.Join(Names(), ", "))
	}
	b := &book{goal: goal, open: s.Configs()}
	size := len(b.open)
	likely, surely = size, size
	switch name {
	case "binary":
		likely = newBinary(b).(binary).most()
		surely = likely
	case "hybrid":
		h := newHybrid(b).(hybrid)
		likely = min(size, max(len(h.sm)+len(h.batch)-1, 0))
		surely = likely
	case "fast":
		likely = assumed.trials
		if goal.CheckQuota {
			var quotas []float64
			for _, c := range b.open {
				quotas = append(quotas, c.Quota)
			}
			likely += halvings(ascending(quotas))
		}
		likely = min(size, likely)
	}
	return likely, surely, nil
}

// most is the whole GPU, and two searches by halves, which begin in the same place.
func (p binary) most() int {
	axis := p.axis()
	if len(axis) == 0 {
		return 0
	}
	return min(len(axis), 1+max(0, 2*halves(axis, -1, len(axis)-1)-1))
}

// halves is how many of the axis, between two of it, bisect measures at most.
func halves(axis []float64, low, high int) int {
	if high-low <= 1 {
		return 0
	}
	mid := middle(axis, low, high)
	return 1 + max(halves(axis, low, mid), halves(axis, mid, high))
}

// halvings is how many quotas are tried at most, each the nearest to half of the one
// before.
func halvings(quotas []float64) (most int) {
	after := make([]int, len(quotas))
	for i, quota := range quotas {
		half := -1
		for j, lower := range quotas[:i] {
			if half < 0 || distance(lower, quota/2) < distance(quotas[half], quota/2) {
				half = j
			}
		}
		if half >= 0 {
			after[i] = 1 + after[half]
		}
		most = max(most, after[i])
	}
	return most
}
