package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestDeadline(t *testing.T) {
	var errs bytes.Buffer
	for _, c := range []struct {
		env    Env
		passed time.Duration
		over   bool
		shows  bool
	}{
		{Env{ErrTerminal: true}, 0, false, false}, // nobody reads what is gone at once
		{Env{ErrTerminal: true}, 30 * time.Second, false, true},
		{Env{ErrTerminal: true}, time.Hour, true, false},
		{Env{ErrTerminal: true, Quiet: true}, 30 * time.Second, false, false},
		{Env{}, 30 * time.Second, false, false},
	} {
		errs.Reset()
		c.env.Err = &errs
		over, done := c.env.Deadline(time.Now().Add(-c.passed), time.Minute, "planning")
		if over() != c.over {
			t.Errorf("after %v: over %v", c.passed, !c.over)
		}
		if shows := strings.Contains(errs.String(), "planning, seconds"); shows != c.shows {
			t.Errorf("%+v after %v shows %q", c.env, c.passed, errs.String())
		}
		done()
	}
}

// A note does not begin behind the bar that is shown, but in its place.
func TestNoteTakesTheBarsLine(t *testing.T) {
	var errs bytes.Buffer
	env := &Env{Prog: "tool", Err: &errs, ErrTerminal: true}
	bar := env.Progress(4, "work", "units")
	if err := bar.Begin(); err != nil {
		t.Fatal(err)
	}
	env.Notef("note: %s", "hear")
	before, _, said := strings.Cut(errs.String(), "tool: note: hear\n")
	if !said || !strings.Contains(before, "work") || !strings.HasSuffix(before, "\r") {
		t.Errorf("%q, want the bar, its line cleared, and the note", errs.String())
	}
}

// What is left is said once something is done, and in which units always.
func TestBarReckonsFromWhatIsDone(t *testing.T) {
	var errs bytes.Buffer
	env := &Env{Prog: "tool", Err: &errs, ErrTerminal: true}
	shown := func(do func() error) string {
		t.Helper()
		errs.Reset()
		// It is drawn ten times a second at most.
		for deadline := time.Now().Add(time.Minute); errs.Len() == 0 && time.Now().Before(deadline); {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		return errs.String()
	}
	left := regexp.MustCompile(`\[\d+s:`)
	for _, what := range []string{"", "measuring"} {
		bar := env.Progress(10, what, "trials")
		if text := shown(bar.Begin); left.MatchString(text) || !strings.Contains(text, "trials") || !strings.Contains(text, "(0/10)") {
			t.Errorf("at first: %q", text)
		}
		bar.Describe("the second")
		_ = bar.Add(1)
		text := shown(bar.Begin)
		if !left.MatchString(text) || !strings.Contains(text, "the second, trials") || !strings.Contains(text, "(1/10)") {
			t.Errorf("after one: %q", text)
		}
	}
	bar := env.Progress(-1, "measuring", "trials")
	_ = bar.Add(1)
	text := shown(bar.Begin)
	if left.MatchString(text) || !strings.Contains(text, "measuring, trials") || !strings.Contains(text, "1/-") {
		t.Errorf("without a total: %q", text)
	}
}
