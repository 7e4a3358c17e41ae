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

// Notef prints a message to standard error unless --quiet is set, and passes it to env.Noted.
func (env *Env) Notef(format string, args ...any) {
	env.notef(!env.Quiet, format, args...)
}

// AlwaysNotef is Notef, but prints the message even if --quiet is set.
func (env *Env) AlwaysNotef(format string, args ...any) { env.notef(true, format, args...) }

func (env *Env) notef(prints bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if env.Noted != nil {
		env.Noted(text)
	}
	if prints {
		env.printMessage(text)
	}
}

// Debugf prints a message to standard error under --verbose.
func (env *Env) Debugf(format string, args ...any) {
	if env.Verbose {
		env.printMessage(fmt.Sprintf(format, args...))
	}
}

// printMessage prints a line to standard error. On a terminal, it replaces a bar until the bar's next update.
func (env *Env) printMessage(text string) {
	if env.bar != nil {
		_ = env.bar.Clear()
	}
	fmt.Fprintf(env.Err, "%s: %s\n", env.Prog, text)
}

// Bar shows the progress of work, which several goroutines may report. It estimates the remaining
// time from the first finished unit on.
type Bar struct {
	units   string
	total   int // -1 if unknown
	columns int // width of the terminal; 0 if unknown
	width   int // of the bar itself

	mu        sync.Mutex // guards the fields below; the library locks only some of its own state
	bar       *progressbar.ProgressBar
	estimates bool // the library shows the remaining time

	// If standard error is not a terminal:
	log     *time.Timer // prints the next line; nil if no lines are printed
	started time.Time
	label   string
	done    int
}

// logPeriod is the time between two progress lines in a log.
const logPeriod = 30 * time.Second

// Progress returns a bar on standard error if that is a terminal. Otherwise the bar prints a line
// every logPeriod until Close or Finish. Under --quiet it shows nothing. The bar counts units
// ("functions", "seconds") up to total, which is -1 if unknown; label describes the work ("planning")
// and may be empty.
func (env *Env) Progress(total int, label, units string) *Bar {
	var out io.Writer = io.Discard
	bar := &Bar{units: units, total: total, width: wideBar, label: label, started: time.Now()}
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
		progressbar.OptionSetDescription(bar.counting(label)),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of the library, which would race with ours
		progressbar.OptionEnableColorCodes(false),
	)
	if out != io.Discard {
		env.bar = bar
	}
	return bar
}

// counting returns the description and the units of the bar, cut to the room on the line.
func (b *Bar) counting(label string) string {
	if room := max(b.columns-b.width-besideBar-len(b.units), 0); b.columns > 0 && len(label) > room {
		label = strings.ToValidUTF8(label[:room], "")
	}
	if label == "" {
		return b.units
	}
	return label + ", " + b.units
}

// report prints a line with the progress and schedules the next one.
func (b *Bar) report(env *Env) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log == nil {
		return
	}
	b.log.Reset(logPeriod)
	passed := time.Since(b.started)
	text := strconv.Itoa(b.done)
	if b.total > 0 {
		text += fmt.Sprintf(" of %d", b.total)
	}
	text += fmt.Sprintf(" %s after %v", b.units, passed.Round(time.Second))
	if 0 < b.done && b.done < b.total {
		remaining := time.Duration(float64(passed) / float64(b.done) * float64(b.total-b.done))
		text += fmt.Sprintf(", about %v left", remaining.Round(time.Second))
	}
	if b.label != "" {
		text = b.label + ": " + text
	}
	fmt.Fprintf(env.Err, "%s: %s\n", env.Prog, text)
}

// Close removes the bar from the terminal and stops the lines in a log.
func (b *Bar) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quit()
	return b.bar.Clear()
}

// quit stops the lines in a log. The caller holds b.mu.
func (b *Bar) quit() {
	if b.log != nil {
		b.log.Stop()
		b.log = nil
	}
}

// Describe replaces the description of the work.
func (b *Bar) Describe(label string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.label = label
	b.bar.Describe(b.counting(label))
}

// Set sets the number of finished units.
func (b *Bar) Set(done int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = done
	b.enableEstimate(done)
	return b.bar.Set(done)
}

// Add adds to the number of finished units.
func (b *Bar) Add(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	b.enableEstimate(n)
	return b.bar.Add(n)
}

// Show shows the bar before the first unit is finished.
func (b *Bar) Show() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bar.RenderBlank()
}

// Finish marks all units as finished and stops the lines in a log.
func (b *Bar) Finish() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quit()
	return b.bar.Finish()
}

// Clear removes the bar from the terminal until the next update.
func (b *Bar) Clear() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bar.Clear()
}

// enableEstimate enables the library's estimate of the remaining time once a unit is finished. The library
// has no other switch for it than ChangeMax. The caller holds b.mu.
func (b *Bar) enableEstimate(done int) {
	if done > 0 && b.total > 0 && !b.estimates {
		b.estimates = true
		b.bar.ChangeMax(b.total)
	}
}

// Lasting shows the seconds of work that takes the given time or longer. The bar appears after one second,
// and stays below its total until the caller calls done.
func (env *Env) Lasting(minimum time.Duration, label string) (done func()) {
	total := max(int(minimum/time.Second), 1)
	bar := env.Progress(total, label, "seconds")
	seconds := 0
	stop := EverySecond(func() {
		seconds++
		_ = bar.Set(min(seconds, total-1))
	})
	return func() {
		stop()
		_ = bar.Close()
	}
}

// EverySecond calls a function every second, from another goroutine, until the caller calls stop. The
// function is not running any more when stop returns.
func EverySecond(do func()) (stop func()) {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-quit:
				return
			}
		}
	})
	return func() {
		close(quit)
		running.Wait()
	}
}

// Deadline shows the progress of work with a time limit, counted from start. The function expired
// reports whether the limit has passed. The function done removes the bar.
func (env *Env) Deadline(start time.Time, limit time.Duration, label string) (expired func() bool, done func()) {
	return func() bool { return time.Since(start) >= limit }, env.Lasting(limit-time.Since(start), label)
}
