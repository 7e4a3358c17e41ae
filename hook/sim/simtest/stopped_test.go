package simtest

import (
	"syscall"
	"testing"
	"time"
)

// TestStopped checks that work sent before a process is stopped still runs, and that
// the device then belongs to the others. The process later continues where it was.
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
				// 20 ms of work take 20 ms alone, and twice that next to another
				// process.
				for end := time.Now().Add(patience); survivor.mean(5) > 30; {
					if time.Now().After(end) {
						t.Fatalf("round %d: batches beside the stopped process take more than 30 ms after %v, want its share given to the survivor", round, patience)
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
