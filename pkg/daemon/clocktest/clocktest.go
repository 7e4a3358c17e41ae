// Package clocktest makes times as time.Now returns them after the wall clock was set.
// Tests of daemons use it.
package clocktest

import (
	"testing"
	"time"
	"unsafe"
)

// Set returns t as time.Now would have returned it if the wall clock had been set
// forward by by before, in whole seconds. The wall clock reading differs from t's, the
// monotonic clock reading is the same.
func Set(tb testing.TB, t time.Time, by time.Duration) time.Time {
	tb.Helper()
	// The first word of a time with both readings holds one bit that marks it, 33 bits of
	// seconds and 30 bits of nanoseconds.
	set := t
	*(*uint64)(unsafe.Pointer(&set)) += uint64(by/time.Second) << 30
	if set.Sub(t) != 0 || set.Round(0).Sub(t.Round(0)) != by {
		tb.Fatalf("%v set by %v is %v", t, by, set)
	}
	return set
}
