package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

// occasion is something that is to happen.
type occasion struct {
	at       time.Duration
	seq      int // of those at one moment the first that was planned is first
	kind     kind
	step     int // of the worker
	worker   *worker
	device   *device
	function *function
}

type kind int

const (
	stop    kind = iota // of what a worker does
	answer              // of a worker's batch
	arrival             // of a function's request
	wake                // of a device's policy
)

// happen has it happen, unless something came before it.
func (o *occasion) happen() {
	switch o.kind {
	case stop:
		if o.worker.step == o.step {
			o.worker.stopped()
		}
	case answer:
		o.worker.answered()
	case arrival:
		o.function.arrive()
	case wake:
		if o.device.wakes == o.at {
			o.device.tell(token.Wake{})
		}
	}
}

// agenda is what is to happen: a binary heap by time.
type agenda struct {
	heap []occasion
	seq  int
}

func (a *agenda) before(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	return x.at < y.at || x.at == y.at && x.seq < y.seq
}

func (a *agenda) push(o occasion) {
	a.seq++
	o.seq = a.seq
	a.heap = append(a.heap, o)
	for i := len(a.heap) - 1; i > 0 && a.before(i, (i-1)/2); i = (i - 1) / 2 {
		a.heap[i], a.heap[(i-1)/2] = a.heap[(i-1)/2], a.heap[i]
	}
}

// pop takes the first out.
func (a *agenda) pop() occasion {
	first, last := a.heap[0], len(a.heap)-1
	a.heap[0] = a.heap[last]
	a.heap = a.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && a.before(child+1, child) {
			child++
		}
		if child >= last || !a.before(child, i) {
			return first
		}
		a.heap[i], a.heap[child] = a.heap[child], a.heap[i]
		i = child
	}
}
