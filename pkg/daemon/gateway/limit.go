package gateway

import (
	"sync"
	"sync/atomic"
	"time"
)

// limit is until when something is waited for. What is waited for comes soon as a
// rule: only what has not after a while gets a timer.
type limit struct {
	all   *limits
	until atomic.Int64 // in all's time; 0 while nothing is waited for, passed once it was in vain
	timer atomic.Pointer[time.Timer]
	owner interface{ late() } // called once, beside, when the time is over
}

const passed = -1

// set waits for so long from now on, and returns now.
func (l *limit) set(d time.Duration) (now time.Duration) {
	now = l.all.now()
	if l.until.Swap(int64(now+max(d, 1))) <= 0 {
		l.all.add(l)
	}
	return now
}

// stop waits no more; false if the time was over.
func (l *limit) stop() bool {
	in := l.until.Swap(0) != passed
	if t := l.timer.Swap(nil); t != nil {
		t.Stop()
	}
	return in
}

// look is called when the time is over, unless it was set anew.
func (l *limit) look() {
	until := l.until.Load()
	switch left := until - int64(l.all.now()); {
	case until <= 0:
	case left > 0:
		l.watch(time.Duration(left))
	case l.until.CompareAndSwap(until, passed):
		l.owner.late()
	default:
		l.look()
	}
}

// watch gives the limit a timer.
func (l *limit) watch(d time.Duration) {
	timer := time.AfterFunc(d, l.look)
	if old := l.timer.Swap(timer); old != nil {
		old.Stop()
	}
	if l.until.Load() == 0 { // stop may not have seen it
		timer.Stop()
	}
}

// limits has one timer for all that have none yet: to start and stop one for each
// call costs more than all else that is done about its time.
type limits struct {
	begin time.Time

	mu    sync.Mutex
	young []*limit
	spare []*limit // scratch
	timed bool
}

// youth is for how long a limit has no timer of its own, at most.
const youth = 20 * time.Millisecond

func (a *limits) now() time.Duration { return time.Since(a.begin) }

func (a *limits) at(t time.Time) time.Duration { return t.Sub(a.begin) }

func (a *limits) add(l *limit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.young = append(a.young, l)
	if !a.timed {
		a.timed = true
		time.AfterFunc(youth, a.sweep)
	}
}

// sweep gives timers to those that are still waited for.
func (a *limits) sweep() {
	a.mu.Lock()
	young := a.young
	a.young, a.spare, a.timed = a.spare[:0], nil, false
	a.mu.Unlock()
	for _, l := range young {
		if until := l.until.Load(); until > 0 {
			l.watch(max(time.Duration(until)-a.now(), 0))
		}
	}
	clear(young)
	a.mu.Lock()
	a.spare = young
	a.mu.Unlock()
}
