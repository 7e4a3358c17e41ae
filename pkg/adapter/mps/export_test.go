package mps

import (
	"testing"
	"time"
)

// SetTerminateTime bounds Terminate until the test ends.
func SetTerminateTime(t testing.TB, d time.Duration) {
	before := terminateTime
	terminateTime = d
	t.Cleanup(func() { terminateTime = before })
}
