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

// What a program computes on the simulated GPU, which takes its own time
// whatever else the machine does, depends on the host: where the daemon, or a
// program whose turn it is, gets no processor, nobody computes. So a program
// that has nothing of gfaas in it runs in the same seconds, as willing to wait
// as they are, and says how much a bare hand-over loses.
//
// It is a number of rings. In each a thread holds a token for a time, and then
// threads wake each other as at the end of a lease: the daemon's timer ends it,
// the program gives it back and the daemon hears of that, the next program goes
// on and with it its simulated GPU. A timer or an exchange that is less than a
// millisecond late is what a free processor takes, and no loss. All others are,
// in full.
//
// The rings are samples of what the host takes from one chain of hand-overs in
// these seconds; what it takes from the programs under test is one more. With
// mean m and standard deviation s of n rings that one lies below
// m + 3 s sqrt(1 + 1/n), but in one case of 60 were the losses independent and
// normal (Student's t with n-1 = 5 degrees of freedom), in at most one of 10
// whatever their distribution (Cantelli). A test goes wrong by that only where
// the programs themselves have used up their bound: on a host with nothing else
// to do they leave two thirds of it, and m and s are 0. The bounds then are the
// tests' own.
const (
	rings  = 6
	stalls = time.Millisecond // the least that counts
)

// witness is a running witness.
type witness struct {
	t   testing.TB
	cmd *exec.Cmd
	out safeBuffer
}

// witnesses starts a witness that looks at the host from a second after now for
// so long; in each cycle the token changes hands that many times.
func (h *host) witnesses(handovers int, cycle, length time.Duration) *witness {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	w := &witness{t: h.t, cmd: exec.Command(self)}
	w.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", witnessKey, cycle/time.Duration(handovers), length))
	w.cmd.Stdout = &w.out
	if err := tokentest.StartFirst(w.cmd); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	return w
}

// stalled is the most of the time that the host may have taken, 0 to 1.
func (w *witness) stalled() float64 {
	w.t.Helper()
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatalf("witness: %v", err)
	}
	var lost []float64
	if err := json.Unmarshal([]byte(w.out.String()), &lost); err != nil || len(lost) != rings {
		w.t.Fatalf("witness: %q: %v", w.out.String(), err)
	}
	most := upper(lost)
	w.t.Logf("the host took %.4f of the time from a bare token; at most %.4f", lost, most)
	return most
}

// upper is where one more sample may lie.
func upper(samples []float64) float64 {
	n, mean, square := float64(len(samples)), 0.0, 0.0
	for _, x := range samples {
		mean += x / n
	}
	for _, x := range samples {
		square += (x - mean) * (x - mean) / (n - 1)
	}
	return mean + 3*math.Sqrt(square*(1+1/n))
}

// witnessKey is the variable that makes this test program a witness: how long a
// thread holds the token and how long to look, in nanoseconds.
const witnessKey = "GFAAS_WITNESS"

// bearWitness is the witness itself. Its wakes are the kernel's alone: threads
// that read from pipes.
func bearWitness(text string) error {
	var hold, length time.Duration
	if _, err := fmt.Sscan(text, &hold, &length); err != nil {
		return err
	}
	runtime.GOMAXPROCS(4 * rings) // no thread waits for another ring's
	var lost [rings]float64
	done := make(chan error)
	began := time.Now().Add(time.Second)
	for i := range lost {
		go func() {
			at, err := ring(hold, began, began.Add(length))
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

// ring hands a token round until the end and returns what of the time it was
// late for longer than a stall.
func ring(hold time.Duration, began, end time.Time) (late time.Duration, err error) {
	var there, back [2]int
	for _, pipe := range []*[2]int{&there, &back} {
		if err := unix.Pipe(pipe[:]); err != nil {
			return 0, err
		}
	}
	go func() { // the programs: woken, each answers
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
	woke := func(since time.Time) {
		if took := time.Since(since); took > stalls && since.After(began) {
			late += took
		}
	}
	at := make([]byte, 8)
	for time.Now().Before(end) {
		due := time.Now().Add(hold)
		wait := unix.NsecToTimespec(int64(hold))
		if err := unix.Nanosleep(&wait, nil); err != nil && err != unix.EINTR {
			return 0, err
		}
		woke(due)
		for range 2 { // give it back, take it
			sent := time.Now()
			if _, err := unix.Write(there[1], at); err != nil {
				return 0, err
			}
			if _, err := unix.Read(back[0], at); err != nil {
				return 0, err
			}
			woke(sent)
		}
	}
	return late, nil
}

// sleepKey is the variable that makes this test program a sleeper.
const sleepKey = "GFAAS_SLEEPER"

// sleeper is a running program whose threads, one bound to each processor, sleep for
// a millisecond over and over. They go before all else, as programs do that a
// benchmark starts first.
type sleeper struct {
	t   testing.TB
	cmd *exec.Cmd
	end io.Closer
	out safeBuffer
}

func (h *host) sleeps() *sleeper {
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
	if err := tokentest.StartFirst(s.cmd); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	return s
}

// latest ends it and is by how much a thread woke too late at the worst, in
// milliseconds.
func (s *sleeper) latest() (ms float64) {
	s.t.Helper()
	_ = s.end.Close()
	if err := s.cmd.Wait(); err != nil {
		s.t.Fatalf("sleeper: %v", err)
	}
	if _, err := fmt.Sscan(s.out.String(), &ms); err != nil {
		s.t.Fatalf("sleeper: %q: %v", s.out.String(), err)
	}
	return ms
}

// sleepOn is the sleeper itself, until its standard input ends.
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

// TestWitness: rings that lost nothing leave the bounds alone, and those that
// lost widen them by what they tell.
func TestWitness(t *testing.T) {
	for want, lost := range map[float64][]float64{
		0: {0, 0, 0}, 0.01: {0.01, 0.01, 0.01}, 0.02 + 0.03*math.Sqrt(4.0/3): {0.01, 0.02, 0.03},
	} {
		if got := upper(lost); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v: %v, want %v", lost, got, want)
		}
	}
}
