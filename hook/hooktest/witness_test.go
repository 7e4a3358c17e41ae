package hooktest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
)

// On the simulated GPU, kernels take their own time whatever else the machine does, but
// the work that a program completes depends on the host: while the daemon, or the
// program whose turn it is, has no processor, no program computes. So an independent
// program, the witness, runs during the same seconds, with the same priority, and
// measures the loss per hand-over without gfaas.
//
// The witness consists of rings. In each ring, a thread holds a token for a time, and
// then threads wake each other as at the end of a lease: the daemon's timer ends the
// lease, the program returns it, the daemon is notified, and the next program and its
// simulated GPU continue. A timer or a wake-up that is less than a millisecond late is
// normal on a free processor and is no loss. Any later one counts in full.
//
// The rings are samples of the host's loss in one chain of hand-overs during these
// seconds; the loss of the programs under test is another sample. With mean m and
// standard deviation s of n rings, that sample lies below m + 3 s sqrt(1 + 1/n), except
// in 1 of 60 cases if the losses are independent and normal (Student's t with n-1 = 5
// degrees of freedom), and in at most 1 of 10 for any distribution (Cantelli). Such a
// case makes a test fail only if the programs themselves have used up their tolerance:
// on a host without other work they leave two thirds of it, and m and s are 0, so the
// tests' own tolerances apply.
const (
	ringCount = 6
	minStall  = time.Millisecond // the shortest delay that counts
)

// witness is a running witness.
type witness struct {
	t   testing.TB
	cmd *exec.Cmd
	out safeBuffer
}

// startWitness starts a witness that observes the host for the given length, beginning in
// one second. In each cycle, the token changes hands `handovers` times.
func (h *host) startWitness(handovers int, cycle, length time.Duration) *witness {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	w := &witness{t: h.t, cmd: exec.Command(self)}
	w.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", witnessKey, cycle/time.Duration(handovers), length))
	w.cmd.Stdout = &w.out
	if err := tokentest.StartWithPriority(w.cmd); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	return w
}

// stalled waits for the witness and returns the upper bound of the fraction of time
// that the host took, 0 to 1.
func (w *witness) stalled() float64 {
	w.t.Helper()
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatalf("witness: %v", err)
	}
	var lost []float64
	if err := json.Unmarshal([]byte(w.out.String()), &lost); err != nil || len(lost) != ringCount {
		w.t.Fatalf("parse the witness's output %q: %v; want %d rings", w.out.String(), err, ringCount)
	}
	most := upperBound(lost)
	w.t.Logf("the host took %.4f of the time from a bare token; at most %.4f", lost, most)
	return most
}

// upperBound returns the upper bound of another sample.
func upperBound(samples []float64) float64 {
	n, mean, square := float64(len(samples)), 0.0, 0.0
	for _, x := range samples {
		mean += x / n
	}
	for _, x := range samples {
		square += (x - mean) * (x - mean) / (n - 1)
	}
	return mean + 3*math.Sqrt(square*(1+1/n))
}

// witnessKey is the variable that makes this test program a witness. Its value is how
// long a thread holds the token, and how long to observe, in nanoseconds.
const witnessKey = "GFAAS_WITNESS"

// runWitness runs the witness. The kernel alone wakes its threads, which read from
// pipes.
func runWitness(text string) error {
	var hold, length time.Duration
	if _, err := fmt.Sscan(text, &hold, &length); err != nil {
		return err
	}
	runtime.GOMAXPROCS(4 * ringCount) // so that no thread waits for another ring's thread
	var lost [ringCount]float64
	done := make(chan error)
	started := time.Now().Add(time.Second)
	for i := range lost {
		go func() {
			at, err := ring(hold, started, started.Add(length))
			lost[i] = at.Seconds() / length.Seconds()
			done <- err
		}()
	}
	for range lost {
		if err := <-done; err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(lost)
}

// ring passes a token around until the end, and returns the sum of all delays that are
// longer than a stall.
func ring(hold time.Duration, started, end time.Time) (late time.Duration, err error) {
	var there, back [2]int
	for _, pipe := range []*[2]int{&there, &back} {
		if err := unix.Pipe(pipe[:]); err != nil {
			return 0, err
		}
	}
	go func() { // the programs: each answers when it is woken
		runtime.LockOSThread()
		at := make([]byte, 8)
		for {
			if n, err := unix.Read(there[0], at); n != len(at) || err != nil {
				return
			}
			if _, err := unix.Write(back[1], at); err != nil {
				return
			}
		}
	}()
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	countDelay := func(since time.Time) {
		if elapsed := time.Since(since); elapsed > minStall && since.After(started) {
			late += elapsed
		}
	}
	at := make([]byte, 8)
	for time.Now().Before(end) {
		due := time.Now().Add(hold)
		wait := unix.NsecToTimespec(int64(hold))
		if err := unix.Nanosleep(&wait, nil); err != nil && err != unix.EINTR {
			return 0, err
		}
		countDelay(due)
		for range 2 { // return it, take it
			sent := time.Now()
			if _, err := unix.Write(there[1], at); err != nil {
				return 0, err
			}
			if _, err := unix.Read(back[0], at); err != nil {
				return 0, err
			}
			countDelay(sent)
		}
	}
	return late, nil
}

// sleepKey is the variable that makes this test program a sleeper.
const sleepKey = "GFAAS_SLEEPER"

// sleeper is a running program with one thread per processor, bound to it, which
// repeatedly sleeps for a millisecond. It has priority over other processes, like the
// programs that a benchmark starts first.
type sleeper struct {
	t   testing.TB
	cmd *exec.Cmd
	end io.Closer
	out safeBuffer
}

func (h *host) startSleeper() *sleeper {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	s := &sleeper{t: h.t, cmd: exec.Command(self)}
	s.cmd.Env = append(os.Environ(), sleepKey+"=1")
	s.cmd.Stdout = &s.out
	if s.end, err = s.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	if err := tokentest.StartWithPriority(s.cmd); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	return s
}

// latest ends the sleeper and returns its latest wake-up, in milliseconds.
func (s *sleeper) latest() (ms float64) {
	s.t.Helper()
	_ = s.end.Close()
	if err := s.cmd.Wait(); err != nil {
		s.t.Fatalf("sleeper: %v", err)
	}
	if _, err := fmt.Sscan(s.out.String(), &ms); err != nil {
		s.t.Fatalf("parse the sleeper's output %q: %v", s.out.String(), err)
	}
	return ms
}

// sleepOn runs the sleeper until its standard input ends.
func sleepOn() {
	worst := make([]atomic.Int64, runtime.NumCPU())
	for cpu := range worst {
		go func() {
			runtime.LockOSThread()
			var own unix.CPUSet
			own.Set(cpu)
			_ = unix.SchedSetaffinity(0, &own)
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
			for wait := unix.NsecToTimespec(int64(time.Millisecond)); ; {
				due := time.Now().Add(time.Millisecond)
				_ = unix.Nanosleep(&wait, nil)
				worst[cpu].Store(max(worst[cpu].Load(), int64(time.Since(due))))
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	var most int64
	for cpu := range worst {
		most = max(most, worst[cpu].Load())
	}
	fmt.Println(time.Duration(most).Seconds() * 1e3)
}

// TestWitness checks that rings without loss leave the tolerances unchanged, and that
// rings with loss widen them by the measured amount.
func TestWitness(t *testing.T) {
	for want, lost := range map[float64][]float64{
		0: {0, 0, 0}, 0.01: {0.01, 0.01, 0.01}, 0.02 + 0.03*math.Sqrt(4.0/3): {0.01, 0.02, 0.03},
	} {
		if got := upperBound(lost); math.Abs(got-want) > 1e-12 {
			t.Errorf("tolerance for the losses %v: got %v, want %v", lost, got, want)
		}
	}
}
