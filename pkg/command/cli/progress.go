package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
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

// Bar shows how far work is, which several goroutines may do. What is left of the
// time it says once something is done: before there is nothing to tell it by.
type Bar struct {
	units   string
	total   int
	columns int // of the terminal; 0 is not known
	width   int // of the bar alone

	mu      sync.Mutex // which the library has for some of what follows only
	bar     *progressbar.ProgressBar
	reckons bool // says what is left

	// Where standard error is no terminal:
	log   *time.Timer // prints the next line; nil where nothing is shown
	began time.Time
	what  string
	done  int
}

// logPeriod is the time between two lines about progress in a log.
const logPeriod = 30 * time.Second

// Progress returns a bar, which is on standard error if that is a terminal. Otherwise,
// the bar prints a line every logPeriod until it is closed or finished. It shows nothing
// under --quiet. It counts units ("functions", "seconds") of what is done ("planning"; it
// may be empty), up to total, which is -1 if it is not known.
func (env *Env) Progress(total int, what, units string) *Bar {
	var out io.Writer = io.Discard
	bar := &Bar{units: units, total: total, width: wideBar, what: what, began: time.Now()}
	switch {
	case env.Quiet:
	case env.ErrTerminal:
		out = env.Err
		if bar.columns = columns(env.Err); bar.columns > 0 {
			out = frames{env.Err, bar.columns}
			bar.width = min(wideBar, max(narrowBar, bar.columns-wideLine))
		}
	default:
		bar.mu.Lock()
		bar.log = time.AfterFunc(logPeriod, func() { bar.report(env) })
		bar.mu.Unlock()
	}
	bar.bar = progressbar.NewOptions(total,
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetWidth(bar.width),
		progressbar.OptionSetDescription(bar.counting(what)),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
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

// counting is what is done with what it is counted in, as much as the line has room for.
func (b *Bar) counting(what string) string {
	if room := max(b.columns-b.width-besideBar-len(b.units), 0); b.columns > 0 && len(what) > room {
		what = strings.ToValidUTF8(what[:room], "")
	}
	if what == "" {
		return b.units
	}
	return what + ", " + b.units
}

// report prints a line about how far the work is, and comes again.
func (b *Bar) report(env *Env) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log == nil {
		return
	}
	b.log.Reset(logPeriod)
	passed := time.Since(b.began)
	text := strconv.Itoa(b.done)
	if b.total > 0 {
		text += fmt.Sprintf(" of %d", b.total)
	}
	text += fmt.Sprintf(" %s after %v", b.units, passed.Round(time.Second))
	if 0 < b.done && b.done < b.total {
		left := time.Duration(float64(passed) / float64(b.done) * float64(b.total-b.done))
		text += fmt.Sprintf(", about %v left", left.Round(time.Second))
	}
	if b.what != "" {
		text = b.what + ": " + text
	}
	fmt.Fprintf(env.Err, "%s: %s\n", env.Prog, text)
}

// Close takes away what is shown, for good.
func (b *Bar) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quit()
	return b.bar.Clear()
}

// quit ends the lines of a log. Locked.
func (b *Bar) quit() {
	if b.log != nil {
		b.log.Stop()
		b.log = nil
	}
}

// Describe says what is done now.
func (b *Bar) Describe(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.what = what
	b.bar.Describe(b.counting(what))
}

// Set says how many units are done.
func (b *Bar) Set(done int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = done
	b.reckon(done)
	return b.bar.Set(done)
}

// Add says that so many more are done.
func (b *Bar) Add(more int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += more
	b.reckon(more)
	return b.bar.Add(more)
}

// Begin shows the bar before anything is done.
func (b *Bar) Begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bar.RenderBlank()
}

// Finish says that all is done.
func (b *Bar) Finish() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quit()
	return b.bar.Finish()
}

// Clear takes away what is shown, until there is more to show.
func (b *Bar) Clear() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bar.Clear()
}

// reckon has the library say what is left, which it does of lengths that are set
// anew. Locked.
func (b *Bar) reckon(done int) {
	if done > 0 && b.total > 0 && !b.reckons {
		b.reckons = true
		b.bar.ChangeMax(b.total)
	}
}

// clear takes away what a bar shows, for a message to have the line.
func (env *Env) clear() {
	if env.bar != nil {
		_ = env.bar.Clear()
	}
}

// Lasting is for work that lasts for so long at least: it shows the seconds until
// done, and is not full before.
func (env *Env) Lasting(least time.Duration, what string) (done func()) {
	total := max(int(least/time.Second), 1)
	bar := env.Progress(total, what, "seconds")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for s := 1; ; s++ {
			select {
			case <-tick.C:
				_ = bar.Set(min(s, total-1))
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		_ = bar.Close()
	}
}

// Deadline is for work that ends at a limit of time at the latest: over says
// whether it has come, and shows how long it has been since start, when that is
// a second or more. Done ends what is shown.
func (env *Env) Deadline(start time.Time, limit time.Duration, what string) (over func() bool, done func()) {
	bar := env.Progress(max(int(limit/time.Second), 1), what, "seconds")
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
		_ = bar.Close()
	}
}
