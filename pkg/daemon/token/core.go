package token

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
)

// core holds the state that all parts of the daemon share.
//
// Its lock guards the state of all parts for their whole life. So the thread that reads a message
// steps the scheduler and opens the gate itself, without waiting for another thread.
type core struct {
	cfg     Config
	lineage lineage
	log     *slog.Logger
	faults  *logLimit // log of protocol violations and other faults of clients
	joins   *logLimit // log of clients that join and leave
	metrics *metrics
	running sync.WaitGroup // goroutines of connections and of moves of memory
	closing chan struct{}  // closed when the daemon starts to shut down

	mu     sync.Mutex
	closed bool // the daemon has shut down: the state does not change any more
}

// statusError is an error with the HTTP status of its answer.
type statusError struct {
	status int
	error
}

// Unwrap returns the cause.
func (e statusError) Unwrap() error { return e.error }

// errClosing is the error of every operation after the shutdown of the daemon.
var errClosing = statusError{http.StatusServiceUnavailable, errors.New("the token daemon is shutting down")}

// locked calls f with the lock held. If the daemon has shut down, it returns errClosing instead.
func (c *core) locked(f func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosing
	}
	f()
	return nil
}

// poll calls done at intervals until it returns true. It returns the context's error if the context ends before.
func poll(ctx context.Context, interval time.Duration, done func() bool) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// logLimit is a log for events that clients can cause. It prints at most lines messages per period
// and counts the others.
type logLimit struct {
	log    *slog.Logger
	lines  int
	period time.Duration

	mu      sync.Mutex
	since   time.Time
	printed int
	dropped int
}

func (r *logLimit) warn(msg string, args ...any) { r.print(slog.LevelWarn, msg, args) }
func (r *logLimit) info(msg string, args ...any) { r.print(slog.LevelInfo, msg, args) }

func (r *logLimit) print(level slog.Level, msg string, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.since) >= r.period {
		r.since, r.printed = now, 0
	}
	if r.printed == r.lines {
		r.dropped++
		return
	}
	r.printed++
	if r.dropped > 0 {
		args = append(args, "not_logged_before", r.dropped)
		r.dropped = 0
	}
	r.log.Log(context.Background(), level, msg, args...)
}

// printable replaces unprintable characters with question marks.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// metrics holds the daemon's counters. The collector (status.go) reads the state of instances and
// clients on demand.
type metrics struct {
	grants  *prometheus.CounterVec
	revokes *prometheus.CounterVec
	refused prometheus.Counter
	waits   *prometheus.HistogramVec
	leases  *prometheus.HistogramVec
}

func newMetrics() *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gfaas_token_" + name, Help: help}, []string{"gpu"})
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gfaas_token_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 4, 10),
		}, []string{"gpu"})
	}
	return &metrics{
		grants:  counter("grants_total", "Leases granted."),
		revokes: counter("revokes_total", "Leases revoked."),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "gfaas_token_refused_total", Help: "Connections refused."}),
		waits:   histogram("wait_seconds", "Time from a request to its grant."),
		leases:  histogram("lease_seconds", "Time from a grant to its return."),
	}
}
