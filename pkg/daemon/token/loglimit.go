package token

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logLimit is a log for what clients can bring about: so many lines a period.
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
