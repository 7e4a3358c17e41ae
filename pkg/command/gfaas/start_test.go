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

// stamp prints when it has begun, in nanoseconds of the monotonic clock.
const stamp = `#include <stdio.h>
#include <time.h>
int main(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    printf("%lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
}`

// starter starts a program that says when it began: bare, and under gfaas run with a
// token daemon that is there.
type starter struct {
	testing.TB
	env   []string
	stamp string
}

func newStarter(t testing.TB) *starter {
	dir, err := os.MkdirTemp("", "start") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &starter{TB: t, stamp: filepath.Join(dir, "stamp"), env: append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"),
		"GFAAS_STATE="+filepath.Join(dir, "state.db"), "GFAAS_LIB_DIR="+built("lib"), "GFAAS_SIM_DIR="+dir, "XDG_CONFIG_HOME="+dir)}
	instancetest.Compile(t, s.stamp, []byte(stamp), "-O1")
	daemon := exec.Command(built("bin", "gfaas-tokend"))
	daemon.Env = s.env
	if err := daemon.Start(); err != nil {
		t.Fatalf("%v, run make first", err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	for deadline := time.Now().Add(patience); s.command(built("bin", "gfaas-tokend"), "status").Run() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the token daemon does not answer")
		}
	}
	return s
}

func (s *starter) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = s.env
	return cmd
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// started is how long a command takes until the program that it comes to has begun.
func (s *starter) started(name string, args ...string) time.Duration {
	from := monotonic()
	text, err := s.command(name, args...).Output()
	at, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || bad != nil {
		s.Fatalf("%s: %v, %v", name, err, bad)
	}
	return time.Duration(at - from)
}

// startTimes are medians of some rounds, one after the other in each.
type startTimes struct {
	bare, run time.Duration // until the program has begun
	version   time.Duration // gfaas version, from its start to its end
}

func (s *starter) measure(rounds int) startTimes {
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

// A program under gfaas run begins 8 ms later than alone where gfaas version takes 6,
// a third again as much; on a busy machine it is up to twice as much. Three times as
// much is something that it did not do before.
func TestRunStartsSoon(t *testing.T) {
	s := newStarter(t)
	const most = 3
	var f startTimes
	for range 3 {
		f = s.measure(15)
		t.Logf("bare after %v, under gfaas run after %v; gfaas version takes %v", f.bare, f.run, f.version)
		if f.run-f.bare <= most*f.version {
			return
		}
	}
	t.Errorf("gfaas run adds %v to a program's start, more than %d times what gfaas version takes, %v", f.run-f.bare, most, f.version)
}

// What the packages prepare before any command runs is a third of each command's
// time. Its bytes do not depend on how busy a machine is.
func TestStartIsLight(t *testing.T) {
	cmd := exec.Command(built("bin", "gfaas"), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v, run make first: %s", err, text)
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
	const most = 2_100_000 // it is 1.8 million, of which tables take a third and Docker's client a quarter
	if total > most || total == 0 {
		t.Errorf("packages take %d bytes before main, at most %d are meant:\n%s", total, most, strings.Join(largest[:min(8, len(largest))], "\n"))
	}
}

// BenchmarkRunStart is what gfaas run adds to a program's start, beside what gfaas
// version takes.
func BenchmarkRunStart(b *testing.B) {
	s := newStarter(b)
	f := s.measure(max(b.N, 9))
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(f.run-f.bare), "ms-added")
	b.ReportMetric(ms(f.version), "ms-version")
	b.ReportMetric(float64(f.run-f.bare)/float64(f.version), "x-version")
}
