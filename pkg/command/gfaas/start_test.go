package gfaas

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// stamp is a C program that prints the time of its start, in nanoseconds of the monotonic clock.
const stamp = `#include <stdio.h>
#include <time.h>
int main(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    printf("%lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
}`

// startBenchmark measures how long a program takes to start, without gfaas and under gfaas run with a running token daemon.
type startBenchmark struct {
	testing.TB
	env   []string
	stamp string
}

func newStartBenchmark(t testing.TB) *startBenchmark {
	dir, err := os.MkdirTemp("", "start") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &startBenchmark{TB: t, stamp: filepath.Join(dir, "stamp"), env: append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"),
		"GFAAS_STATE="+filepath.Join(dir, "state.db"), "GFAAS_LIB_DIR="+built("lib"), "GFAAS_SIM_DIR="+dir, "XDG_CONFIG_HOME="+dir)}
	instancetest.Compile(t, s.stamp, []byte(stamp), "-O1")
	daemon := exec.Command(built("bin", "gfaas-tokend"))
	daemon.Env = s.env
	if err := daemon.Start(); err != nil {
		t.Fatalf("start gfaas-tokend: %v; run make first", err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	if !poll(func() bool { return s.command(built("bin", "gfaas-tokend"), "status").Run() == nil }) {
		t.Fatal("the token daemon does not answer")
	}
	return s
}

func (s *startBenchmark) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = s.env
	return cmd
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// started returns the time from the start of a command until the program that it runs has started.
func (s *startBenchmark) started(name string, args ...string) time.Duration {
	from := monotonic()
	text, err := s.command(name, args...).Output()
	at, invalid := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || invalid != nil {
		s.Fatalf("start time printed by %s: %q: %v, %v", name, text, err, invalid)
	}
	return time.Duration(at - from)
}

// startTimes holds medians over several rounds. The measurements alternate within each round.
type startTimes struct {
	bare, run time.Duration // until the program has started
	version   time.Duration // gfaas version from start to end
}

func (s *startBenchmark) measure(rounds int) startTimes {
	var bare, run, version []time.Duration
	for range rounds {
		bare = append(bare, s.started(s.stamp))
		run = append(run, s.started(built("bin", "gfaas"), "run", "-q", "--gpu", "sim", "--", s.stamp))
		from := time.Now()
		if err := s.command(built("bin", "gfaas"), "version").Run(); err != nil {
			s.Fatal(err)
		}
		version = append(version, time.Since(from))
	}
	median := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }
	return startTimes{median(bare), median(run), median(version)}
}

// TestStartDelayOfRun checks how long gfaas run delays the start of a program: 8 ms when gfaas version takes 6 ms, and
// on a busy host up to twice the time of gfaas version. The test fails at three times that time, which indicates
// additional work.
func TestStartDelayOfRun(t *testing.T) {
	s := newStartBenchmark(t)
	const most = 3
	var f startTimes
	for range 3 {
		f = s.measure(15)
		t.Logf("bare after %v, under gfaas run after %v; gfaas version takes %v", f.bare, f.run, f.version)
		if f.run-f.bare <= most*f.version {
			return
		}
	}
	t.Errorf("delay of a program's start by gfaas run: got %v, want at most %d times the %v of gfaas version", f.run-f.bare, most, f.version)
}

// TestAllocationsBeforeMain bounds the initialization of packages, which is a third of each command's time. It counts
// allocated bytes, because they do not depend on the load of the host.
func TestAllocationsBeforeMain(t *testing.T) {
	cmd := exec.Command(built("bin", "gfaas"), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("gfaas version: %v; run make first: %s", err, text)
	}
	total, largest := 0, []string{}
	for _, m := range regexp.MustCompile(`init (\S+) @.* (\d+) bytes`).FindAllStringSubmatch(string(text), -1) {
		bytes, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		total += bytes
		largest = append(largest, fmt.Sprintf("%8d %s", bytes, m[1]))
	}
	slices.SortFunc(largest, func(a, b string) int { return strings.Compare(b, a) })
	const most = 2_100_000 // currently 1.8 million: a third in tables, a quarter in Docker's client
	if total > most || total == 0 {
		t.Errorf("memory allocated by packages before main: got %d bytes, want at most %d:\n%s", total, most, strings.Join(largest[:min(8, len(largest))], "\n"))
	}
}

// BenchmarkRunStart reports the delay of a program's start by gfaas run, and the time of gfaas version for comparison.
func BenchmarkRunStart(b *testing.B) {
	s := newStartBenchmark(b)
	f := s.measure(max(b.N, 9))
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(f.run-f.bare), "ms-added")
	b.ReportMetric(ms(f.version), "ms-version")
	b.ReportMetric(float64(f.run-f.bare)/float64(f.version), "x-version")
}
