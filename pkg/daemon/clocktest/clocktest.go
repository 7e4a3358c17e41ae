// Package clocktest has times as they would be had somebody set the wall's clock.
package clocktest

import (
	"testing"
	"time"
	"unsafe"
)

// Set is a time as time.Now would have given it had the wall's clock been set by so
// much, in whole seconds, before: what it says of the day is another, what it says of
// the time since others is the same.
func Set(tb testing.TB, t time.Time, by time.Duration) time.Time {
	tb.Helper()
	// The first word of a time that has both is a bit for that, 33 bits of seconds,
	// and 30 of nanoseconds.
	set := t
	*(*uint64)(unsafe.Pointer(&set)) += uint64(by/time.Second) << 30
	if set.Sub(t) != 0 || set.Round(0).Sub(t.Round(0)) != by {
		tb.Fatalf("%v set by %v is %v", t, by, set)
	}
	return set
}
