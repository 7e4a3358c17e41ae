package cli

import (
	"io"
	"log/slog"
)

// Logger returns a daemon's logger. It writes text to standard error if that is a terminal, and
// JSON to out otherwise. --quiet and --verbose set the level.
func (env *Env) Logger(out io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	switch {
	case env.Quiet:
		o.Level = slog.LevelError
	case env.Verbose:
		o.Level = slog.LevelDebug
	}
	if env.ErrTerminal {
		return slog.New(slog.NewTextHandler(env.Err, o))
	}
	return slog.New(slog.NewJSONHandler(out, o))
}
