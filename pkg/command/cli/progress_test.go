package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		env     *Env
		passed  time.Duration
		expired bool
		shows   bool
	}{
		{&Env{ErrTerminal: true}, 0, false, false}, // too short to read
		{&Env{ErrTerminal: true}, 25 * time.Second, false, true},
		{&Env{ErrTerminal: true}, time.Hour, true, true},
		{&Env{ErrTerminal: true, Quiet: true}, 25 * time.Second, false, false},
		{&Env{}, 25 * time.Second, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var errs bytes.Buffer
			c.env.Err = &errs
			expired, done := c.env.Deadline(time.Now(), time.Minute, "planning")
			time.Sleep(c.passed)
			if expired() != c.expired {
				t.Errorf("deadline after %v: got expired %v, want %v", c.passed, !c.expired, c.expired)
			}
			done() // waits for the goroutine that writes
			if shows := strings.Contains(errs.String(), "planning, seconds"); shows != c.shows {
				t.Errorf("%+v after %v: got the output %q, want a bar: %v", c.env, c.passed, errs.String(), c.shows)
			}
		})
	}
}

// TestNoteReplacesBar checks that a note replaces the visible bar.
func TestNoteReplacesBar(t *testing.T) {
	var errs bytes.Buffer
	env := &Env{Prog: "tool", Err: &errs, ErrTerminal: true}
	bar := env.Progress(4, "work", "units")
	if err := bar.Show(); err != nil {
		t.Fatal(err)
	}
	env.Notef("note: %s", "hear")
	before, _, said := strings.Cut(errs.String(), "tool: note: hear\n")
	if !said || !strings.Contains(before, "work") || !strings.HasSuffix(before, "\r") {
		t.Errorf("standard error: got %q, want the bar, its line cleared, and the note", errs.String())
	}
}

// TestBarShowsRemainingTime checks that the bar shows the remaining time once a unit is finished, and always the units.
func TestBarShowsRemainingTime(t *testing.T) {
	var errs bytes.Buffer
	env := &Env{Prog: "tool", Err: &errs, ErrTerminal: true}
	shown := func(do func() error) string {
		t.Helper()
		errs.Reset()
		// The bar is drawn at most ten times per second.
		for deadline := time.Now().Add(time.Minute); errs.Len() == 0 && time.Now().Before(deadline); {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		return errs.String()
	}
	remaining := regexp.MustCompile(`\[\d+s:`)
	for _, label := range []string{"", "measuring"} {
		bar := env.Progress(10, label, "trials")
		if text := shown(bar.Show); remaining.MatchString(text) || !strings.Contains(text, "trials") || !strings.Contains(text, "(0/10)") {
			t.Errorf("bar before the first trial: got %q, want trials and (0/10) without a remaining time", text)
		}
		bar.Describe("the second")
		_ = bar.Add(1)
		text := shown(bar.Show)
		if !remaining.MatchString(text) || !strings.Contains(text, "the second, trials") || !strings.Contains(text, "(1/10)") {
			t.Errorf("bar after one trial: got %q, want the description, (1/10) and a remaining time", text)
		}
	}
	bar := env.Progress(-1, "measuring", "trials")
	_ = bar.Add(1)
	text := shown(bar.Show)
	if remaining.MatchString(text) || !strings.Contains(text, "measuring, trials") || !strings.Contains(text, "1/-") {
		t.Errorf("bar without a total: got %q, want the label and 1/- without a remaining time", text)
	}
}

// TestProgressInALog checks that a bar without a terminal prints a line at least every minute until the work is finished,
// and none under --quiet.
func TestProgressInALog(t *testing.T) {
	for _, end := range map[string]func(*Bar) error{"finish": (*Bar).Finish, "close": (*Bar).Close} {
		synctest.Test(t, func(t *testing.T) {
			var errs shared
			env := &Env{Prog: "tool", Err: &errs}
			bar := env.Progress(10, "measuring", "trials")
			quiet := (&Env{Prog: "quiet", Err: &errs, Quiet: true}).Progress(-1, "measuring", "trials")
			open := (&Env{Prog: "open", Err: &errs}).Progress(-1, "", "calls")
			passed := func(d time.Duration) string {
				errs.drain()
				time.Sleep(d)
				synctest.Wait()
				return errs.drain()
			}
			if text := passed(logPeriod - time.Second); text != "" {
				t.Errorf("log within the first period: got %q, want nothing", text)
			}
			if text := passed(2 * time.Second); !strings.Contains(text, "tool: measuring: 0 of 10 trials after 30s\n") || !strings.Contains(text, "open: 0 calls after 30s\n") || strings.Contains(text, "quiet") {
				t.Errorf("log after the first period: got %q, want one line of tool and of open, with 0 units, and none of quiet", text)
			}
			bar.Describe("f at sm_pct 24")
			_ = bar.Add(1)
			_ = bar.Add(1)
			_ = quiet.Add(1)
			_ = open.Set(7)
			if text := passed(time.Minute); !strings.Contains(text, "tool: f at sm_pct 24: 2 of 10 trials after 1m0s, about 4m0s left\n") || !strings.Contains(text, "open: 7 calls after 1m0s\n") || strings.Contains(text, "quiet") {
				t.Errorf("log after two of ten trials: got %q, want the description, the remaining time, and the calls of open", text)
			}
			_ = end(bar)
			_, _ = end(quiet), end(open)
			if text := passed(time.Hour); text != "" {
				t.Errorf("log after the end: got %q, want nothing", text)
			}
		})
	}
}

// shared is a buffer for several goroutines.
type shared struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// drain returns the text written since the last call.
func (s *shared) drain() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.text.Reset()
	return s.text.String()
}

// openPseudoTerminal opens a pseudo-terminal with the given width.
func openPseudoTerminal(t *testing.T, columns uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})); err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// TestBarFitsItsTerminal checks that each frame fits on one line, so that the next one can replace it, and that it ends
// with the counts and the time.
func TestBarFitsItsTerminal(t *testing.T) {
	for _, columns := range []uint16{20, 40, 60, 80, 100, 120, 160, 200, 250} {
		master, slave := openPseudoTerminal(t, columns)
		read := make(chan []byte)
		go func() {
			text, _ := io.ReadAll(master) // ends with EIO
			read <- text
		}()
		env := &Env{Prog: "tool", Err: slave, ErrTerminal: true}
		bar := env.Progress(35, "measuring", "configurations")
		for n := range 35 {
			bar.Describe(fmt.Sprintf("resnet50 at sm_pct 24, quota 0.4, batch 16 (last %d rps, p95 69.123 ms): goodput, trial 3 at 100 rps – größer", 1000*n))
			if err := errors.Join(bar.Show(), bar.Add(1)); err != nil {
				t.Fatal(err)
			}
		}
		_ = bar.Clear()
		env.Notef("note: the end")
		_ = slave.Close()
		text := <-read
		frames := strings.Split(string(text), "\r")
		longest := ""
		for _, frame := range frames {
			if frame = strings.Trim(frame, "\n"); utf8.RuneCountInString(frame) > utf8.RuneCountInString(longest) && strings.TrimSpace(frame) != "" {
				longest = frame
			}
			if utf8.RuneCountInString(frame) >= int(columns) {
				t.Errorf("terminal of %d columns: got a frame of %d, want fewer: %q", columns, utf8.RuneCountInString(frame), frame)
			}
		}
		if strings.Count(string(text), "\n") != 1 {
			t.Errorf("terminal of %d columns: got %d line breaks, want 1, after the note, in %q", columns, strings.Count(string(text), "\n"), text)
		}
		if columns >= 80 && (!strings.Contains(longest, "/35)") || !strings.Contains(longest, "resnet50") || !strings.HasSuffix(strings.TrimSpace(longest), "]")) {
			t.Errorf("%d columns: %q, want what is measured, how many of 35, and the time", columns, longest)
		}
	}
}
