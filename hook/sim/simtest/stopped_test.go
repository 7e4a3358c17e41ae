package simtest

import (
	"syscall"
	"testing"
	"time"
)

// TestStopped: what a process has sent before it is stopped runs, and then the
// device is the others'. It goes on where it was.
func TestStopped(t *testing.T) {
	for _, share := range []string{"", "100"} {
		t.Run("share "+share, func(t *testing.T) {
			h := newHost(t, small)
			stopped, survivor := h.start(share, "burn"), h.start(share, "burn")
			stopped.batch()
			survivor.batch()
			for round := range 2 {
				if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				// 20 ms of work take that long alone, and twice as long beside another's.
				for end := time.Now().Add(patience); survivor.mean(5) > 30; {
					if time.Now().After(end) {
						t.Fatalf("round %d: the stopped process still has its share", round)
					}
				}
				if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				stopped.skip()
				for range 10 {
					stopped.batch()
				}
			}
			stopped.end()
			survivor.end()
		})
	}
}
