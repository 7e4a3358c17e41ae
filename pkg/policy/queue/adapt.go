package queue

// adaptive changes how many invocations a GPU runs at once so that it stays
// less busy than a threshold (MQFQ-Sticky, sections 4.2 and 4.4): a moving
// average of samples, one more when there is room for another 1/D, one less
// above the threshold.
type adaptive struct {
	threshold float64
	gpus      []load
}

type load struct {
	busy        float64 // moving average, 0 to 1
	slots, most int     // most is D as the GPU was set
}

// set begins with as many as may be.
func (a *adaptive) set(gpu int32, slots int) {
	a.gpus = grown(a.gpus, int(gpu)+1)
	a.gpus[gpu] = load{slots: slots, most: slots}
}

// sample takes how busy a GPU was and gives how many it may run at once.
func (a *adaptive) sample(gpu int32, busy float64) int {
	const weight = 0.3
	l := &a.gpus[gpu]
	l.busy += weight * (busy - l.busy)
	switch {
	case l.busy > a.threshold && l.slots > 1:
		l.slots--
	case l.busy+1/float64(l.most) <= a.threshold && l.slots < l.most:
		l.slots++
	}
	return l.slots
}
