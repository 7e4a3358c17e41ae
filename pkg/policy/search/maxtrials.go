package search

// MaxTrials returns how many configurations of the space a search measures at most, if each can be
// measured: surely in every case, likely in the usual one. The two differ for "fast", which ends after a
// few trials once a configuration meets the goal; likely holds if one of its first configurations does.
// The name must be one of Names.
func MaxTrials(name string, s Space, goal Goal) (likely, surely int) {
	b := &book{goal: goal, open: s.Configs()}
	size := len(b.open)
	switch name {
	case "binary":
		likely = newBinary(b).(binary).maxTrials()
	case "hybrid":
		h := newHybrid(b).(hybrid)
		likely = min(size, max(len(h.sm)+len(h.batch)-1, 0))
	case "gpulet":
		likely = len(newGPUlet(b).(gpulet).trial)
	case "fast":
		likely = assumed.maxTrials
		if goal.CheckQuota {
			var quotas []float64
			for _, c := range b.open {
				quotas = append(quotas, c.Quota)
			}
			likely += maxHalvings(ascending(quotas))
		}
		return min(size, likely), size
	default:
		likely = size
	}
	return likely, likely
}

// maxTrials returns the trials of the whole GPU and of two bisections, which begin at the same share.
func (p binary) maxTrials() int {
	axis := p.axis()
	if len(axis) == 0 {
		return 0
	}
	return min(len(axis), 1+max(0, 2*maxBisections(axis, -1, len(axis)-1)-1))
}

// maxBisections returns how many elements of the axis between two of them bisect measures at most.
func maxBisections(axis []float64, low, high int) int {
	if high-low <= 1 {
		return 0
	}
	mid := middle(axis, low, high)
	return 1 + max(maxBisections(axis, low, mid), maxBisections(axis, mid, high))
}

// maxHalvings returns how many quotas are tried at most, if each is the one nearest to half of its
// predecessor.
func maxHalvings(quotas []float64) (longest int) {
	chain := make([]int, len(quotas))
	for i, quota := range quotas {
		half := -1
		for j, lower := range quotas[:i] {
			if half < 0 || distance(lower, quota/2) < distance(quotas[half], quota/2) {
				half = j
			}
		}
		if half >= 0 {
			chain[i] = 1 + chain[half]
		}
		longest = max(longest, chain[i])
	}
	return longest
}
