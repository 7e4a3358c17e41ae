package queue

// adaptive adjusts the number of concurrent invocations of each GPU to keep its utilization below
// a threshold (MQFQ-Sticky, sections 4.2 and 4.4). It averages samples of the utilization, adds a
// slot if 1/D more stays within the threshold, and removes one above it.
type adaptive struct {
	threshold float64
	gpus      []load
}

type load struct {
	busy              float64 // moving average of the utilization, 0 to 1
	slots, configured int     // most is D, as configured
}

// set resets the average of a GPU and gives it all its slots.
func (a *adaptive) set(gpu int32, slots int) {
	a.gpus = grown(a.gpus, int(gpu)+1)
	a.gpus[gpu] = load{slots: slots, configured: slots}
}

// sample adds a sample of a GPU's utilization and returns the new number of slots.
func (a *adaptive) sample(gpu int32, busy float64) int {
	const weight = 0.3
	l := &a.gpus[gpu]
	l.busy += weight * (busy - l.busy)
	switch {
	case l.busy > a.threshold && l.slots > 1:
		l.slots--
	case l.busy+1/float64(l.configured) <= a.threshold && l.slots < l.configured:
		l.slots++
	}
	return l.slots
}
