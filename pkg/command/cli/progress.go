package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Notef tells the user something on standard error unless --quiet.
func (env *Env) Notef(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if env.Noted != nil {
		env.Noted(text)
	}
	if !env.Quiet {
		env.clear()
		fmt.Fprintf(env.Err, "%s: %s\n", env.Prog, text)
	}
}

// Debugf tells the user something on standard error under --verbose.
func (env *Env) Debugf(format string, args ...any) {
	if env.Verbose {
		env.clear()
		fmt.Fprintf(env.Err, "%s: %s\n", env.Prog, fmt.Sprintf(format, args...))
	}
}

// Progress is a bar with the time left, on standard error when that is a
// terminal and --quiet was not given; otherwise it shows nothing.
func (env *Env) Progress(total int, what string) *progressbar.ProgressBar {
	out := io.Discard
	if env.ErrTerminal && !env.Quiet {
		out = env.Err
	}
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // drawn as work goes on: a goroutine of the library's own races with that
		progressbar.OptionEnableColorCodes(false),
	)
	if out != io.Discard {
		env.bar = bar
	}
	return bar
}

// clear takes away what a bar shows, for a message to have the line.
func (env *Env) clear() {
	if env.bar != nil {
		_ = env.bar.Clear()
	}
}

// Deadline is for work that ends at a limit of time at the latest: over says
// whether it has come, and shows how long it has been since start, when that is
// a second or more. Done ends what is shown.
func (env *Env) Deadline(start time.Time, limit time.Duration, what string) (over func() bool, done func()) {
	bar := env.Progress(max(int(limit/time.Second), 1), what+", seconds")
	shown := 0
	over = func() bool {
		passed := time.Since(start)
		if s := int(passed / time.Second); s > shown && passed < limit {
			shown = s
			_ = bar.Set(s)
		}
		return passed >= limit
	}
	return over, func() {
		if shown > 0 {
			_ = bar.Finish()
		}
	}
}
