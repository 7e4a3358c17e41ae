package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/sim/heap"
)

// occasion is something that is to happen.
type occasion struct {
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

// happen has it happen now, unless something came before it.
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
		if o.device.wakes == o.device.world.now {
			o.device.tell(token.Wake{})
		}
	}
}

// agenda is what is to happen: of what is at one moment, first what was planned first.
type agenda struct {
	heap heap.Heap[occasion]
	seq  int64
}

func (a *agenda) push(at time.Duration, o occasion) {
	a.seq++
	a.heap.Push(at, a.seq, o)
}

// pop takes the first out.
func (a *agenda) pop() (time.Duration, occasion) {
	at := a.heap.At()
	return at, a.heap.Pop()
}
