package cli

import (
	"io"
	"log/slog"
)

// Logger is a daemon's log: text on a terminal, else JSON on out.
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
