package sim

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Mover is a way in which memory moves between the host and a GPU that is oversubscribed by managed
// memory (MQFQ-Sticky, section 5.2 and Figure 4).
type Mover struct {
	Name, Help string

	// set changes the policy's options to those of the mover.
	set func(*queue.Options)
	// evicts reports that an invocation waits for the memory that is evicted for it.
	evicts bool
	// faults reports that kernels fetch memory page by page.
	faults bool
	// advises reports that each invocation takes the additional time Config.Hints.
	advises bool
}

// movers lists the movers, the paper's own last.
var movers = []Mover{
	{Name: "uvm", Help: "the driver's: kernels fetch memory page by page, after the driver has evicted other pages", evicts: true, faults: true},
	{Name: "madvise", Help: "as uvm; each invocation also gives the driver hints (cuMemAdvise)", evicts: true, faults: true, advises: true},
	{Name: "prefetch", Help: "memory returns as a whole, and before the dispatch where possible (prefetch=true), after the driver has evicted other memory",
		evicts: true, set: func(o *queue.Options) { o.Prefetch = true }},
	{Name: "prefetch-swap", Help: "as prefetch; memory moves to the host ahead of need (swap=true), or while other work runs",
		set: func(o *queue.Options) { o.Prefetch, o.Swap = true, true }},
}

// Movers returns the movers.
func Movers() []Mover { return slices.Clone(movers) }

// SetMover selects a mover by name, and changes the policy's options to those of the mover. It returns
// false if there is none of that name.
func (c *Config) SetMover(name string) bool {
	for i := range movers {
		if movers[i].Name != name {
			continue
		}
		c.Mover = &movers[i]
		if set := movers[i].set; set != nil {
			set(&c.Options)
		}
		return true
	}
	return false
}

// The defaults of Config.Fault and Config.Hints. With Fault, an invocation of the paper's function FFT,
// which uses 1.5 GB, takes 40% longer under uvm, as in Figure 4: 1.44 times 2 × 125 ms, the time of
// moving 1.5 GB in and 1.5 GB out over PCIe at 12 GB/s, are 40% of its 0.9 s. The paper does not print
// how long the hints take, only that madvise is slightly slower than uvm.
const (
	DefaultFault = 1.44
	DefaultHints = 10 * time.Millisecond
)

// evictions is the time that moving memory out takes, by GPU, for the next invocation that begins on
// the GPU at the same instant.
type evictions struct {
	at   time.Duration
	time []time.Duration
}

// add adds the memory of a function's instance, which takes as long to move out as to move in.
func (e *evictions) add(now time.Duration, gpu int32, load time.Duration) {
	if e.at != now {
		clear(e.time)
		e.at = now
	}
	e.time[gpu] += load
}

// reset returns the time for an invocation on a GPU, and sets it to 0.
func (e *evictions) reset(now time.Duration, gpu int32) (t time.Duration) {
	if e.at == now {
		t, e.time[gpu] = e.time[gpu], 0
	}
	return t
}

// moving returns the time that an invocation takes in addition to what the policy expects, and the part
// of its whole time during which it executes but waits for memory, which counts as execution.
func (r *run) moving(a *queue.Action) (extra, executing time.Duration) {
	m := r.config.Mover
	if m == nil || !m.evicts || queue.OneAtATime(r.config.Policy) {
		return 0, 0
	}
	load := time.Duration(0)
	if a.Start == residency.HostWarm {
		load = r.config.Functions[a.Function].Load
	}
	extra = r.evicted.reset(r.now, a.GPU)
	if m.faults {
		executing = stretch(load+extra, r.config.Fault)
		extra = executing - load
	}
	if m.advises {
		extra, executing = extra+r.config.Hints, executing+r.config.Hints
	}
	return extra, executing
}
