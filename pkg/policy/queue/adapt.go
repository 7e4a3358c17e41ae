package queue

// adaptive changes how many invocations a GPU runs at once so that it stays
// less busy than a threshold (MQFQ-Sticky, sections 4.2 and 4.4): a moving
// average of samples, one more when there is room for another 1/D, one less
// above the threshold.
type adaptive struct {
	most      int // D as configured
	threshold float64
	gpus      []load
}

type load struct {
	busy  float64 // moving average, 0 to 1
	slots int
}

// newAdaptive begins with as many as may be.
func newAdaptive(c Config) *adaptive {
	a := &adaptive{most: c.Concurrency, threshold: c.Utilization, gpus: make([]load, c.GPUs)}
	for i := range a.gpus {
		a.gpus[i].slots = c.Concurrency
	}
	return a
}

// sample takes how busy a GPU was and gives how many it may run at once.
func (a *adaptive) sample(gpu int32, busy float64) int {
	const weight = 0.3
	l := &a.gpus[gpu]
	l.busy += weight * (busy - l.busy)
	switch {
	case l.busy > a.threshold && l.slots > 1:
		l.slots--
	case l.busy+1/float64(a.most) <= a.threshold && l.slots < a.most:
		l.slots++
	}
	return l.slots
}
