package mps

import (
	"testing"
	"time"
)

// SetTerminateTime sets the time limit of Terminate until the test ends.
func SetTerminateTime(t testing.TB, d time.Duration) {
	before := terminateTime
	terminateTime = d
	t.Cleanup(func() { terminateTime = before })
}
