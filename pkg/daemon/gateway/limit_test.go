package gateway

import (
	"sync/atomic"
	"testing"
	"time"
)

type lateness struct{ times atomic.Int32 }

func (l *lateness) late() { l.times.Add(1) }

// TestLimit: what is waited for in vain is told of once, what was set anew or has
// come is not, and only what takes long has a timer of its own.
func TestLimit(t *testing.T) {
	all := &limits{begin: time.Now()}
	made := func() (*limit, *lateness) {
		owner := &lateness{}
		return &limit{all: all, owner: owner}, owner
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	short, told := made()
	short.set(time.Microsecond)
	until("it is never late", func() bool { return told.times.Load() == 1 })
	if short.stop() {
		t.Error("it was in time after it was late")
	}
	short.set(time.Microsecond)
	until("it is not late again", func() bool { return told.times.Load() == 2 })

	long, toldLong := made()
	long.set(time.Hour)
	until("what takes long has no timer", func() bool { return long.timer.Load() != nil })
	long.look() // as a timer of a time before it was set anew would
	if long.set(time.Hour); !long.stop() || long.timer.Load() != nil {
		t.Error("it was late, or its timer stays")
	}
	long.look()
	gone, _ := made()
	gone.set(time.Hour)
	gone.stop()
	until("what has come stays", func() bool { all.mu.Lock(); defer all.mu.Unlock(); return len(all.young) == 0 && !all.timed })
	if gone.timer.Load() != nil || toldLong.times.Load() > 0 {
		t.Error("what was in time has a timer, or is late")
	}
}
