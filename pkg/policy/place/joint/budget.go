package joint

import "cmp"

// budget counts the work of planning one problem and bounds it.
type budget struct {
	work       int64       // spent so far, in steps of the cutter's dynamic program
	limit      int64       // for the rounding and the search
	hasExpired func() bool // Options.Expired
}

func newBudget(o Options) *budget {
	return &budget{limit: cmp.Or(o.Work, defaultWork), hasExpired: o.Expired}
}

// defaultWork bounds the rounding and the search so that a plan takes well under
// a second.
const defaultWork = 10_000_000

// until returns the count of work at which planning that begins now must end.
func (b *budget) until() int64 { return b.work + b.limit }

// spent reports whether planning must end: the work has reached until, or the time has expired.
func (b *budget) spent(until int64) bool { return b.work >= until || b.expired() }

func (b *budget) expired() bool { return b.hasExpired != nil && b.hasExpired() }
