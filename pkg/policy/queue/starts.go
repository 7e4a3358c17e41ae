package queue

import (
	"slices"
	"time"
)

// After maxFailures consecutive failed starts of a function, the engine pauses its starts for
// one second. It then tries one start at a time, and doubles the pause after each failure, up to
// maxPause.
const (
	maxFailures = 3
	maxPause    = time.Minute
)

// starts decides for which functions instances may be started.
type starts struct {
	*backlog
	failures []failures // by function
	failing  []int32    // functions with maxFailures failed starts in a row, ascending
	closing  []int32    // removed functions with invocations that wait for their started instances
}

// failures describes the failed starts of a function.
type failures struct {
	n      int           // consecutive ones
	barred time.Duration // earliest time of the next start
}

// isFailing reports whether the last starts of a function failed.
func (s *starts) isFailing(f int32) bool { return s.failures[f].n >= maxFailures }

func (s *starts) isClosing(f int32) bool { return slices.Contains(s.closing, f) }

// failed counts a failed start, and reports whether it pauses the starts of the function. It
// ignores a failure during a pause, because that start began before the pause.
func (s *starts) failed(f int32) (pauses bool) {
	x := &s.failures[f]
	if s.now < x.barred {
		return false
	}
	if x.n++; x.n < maxFailures {
		return false
	}
	x.barred = s.now + min(time.Second<<min(x.n-maxFailures, 10), maxPause)
	s.failing = withMember(s.failing, f, true)
	s.pool.BarStarts(f, true)
	s.pool.BumpStarts(f)
	return true
}

// succeeded resets the count of failed starts.
func (s *starts) succeeded(f int32) {
	s.pool.LowerLeastMem(f)
	s.failures[f] = failures{}
	if len(s.failing) > 0 {
		s.failing = withMember(s.failing, f, false)
		s.pool.BarStarts(f, s.isClosing(f))
		s.update(f)
	}
}

// reset forgets the failed starts of a function, and that it was removed.
func (s *starts) reset(f int32) {
	s.failures[f] = failures{}
	s.failing, s.closing = withMember(s.failing, f, false), without(s.closing, f)
	s.pool.BarStarts(f, false)
}

// begun bars further starts of a failing function until a start that has begun ends.
func (s *starts) begun(f int32) {
	if s.isFailing(f) && s.pool.Starting(f) {
		s.pool.BarStarts(f, true)
	}
}

// retry allows failing functions to start one instance at a time after their pause.
func (s *starts) retry() {
	for _, f := range s.failing {
		s.pool.BarStarts(f, s.isClosing(f) || s.now < s.failures[f].barred || s.pool.Starting(f))
		s.update(f)
	}
}

// barred reports whether invocations of a function are rejected because its starts failed: it has
// no usable instance and starts are paused.
func (s *starts) barred(f int32) bool {
	return len(s.failing) > 0 && s.isFailing(f) && s.now < s.failures[f].barred && !s.pool.Usable(f) && !s.pool.Pending(f)
}

// wake returns the end of the first pause of a function that needs a start.
func (s *starts) wake() time.Duration {
	at := Never
	for _, f := range s.failing {
		count, _ := s.pool.Count(f)
		if until := s.failures[f].barred; until > s.now && (s.queues.queues[f].len > 0 || count < int(s.functions[f].Min)) {
			at = min(at, until)
		}
	}
	return at
}
