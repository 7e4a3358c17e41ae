package chassis

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// exhaustedPause is the pause between attempts to accept while descriptors or kernel
	// memory are exhausted.
	exhaustedPause = 100 * time.Millisecond
	// exhaustedLogEvery is the shortest time between two log entries about that.
	exhaustedLogEvery = time.Minute
)

// isExhausted reports whether err means that the process or the system has run out of
// descriptors or memory for now.
func isExhausted(err error) bool {
	exhausted := []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS}
	return slices.ContainsFunc(exhausted, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// Patiently wraps accept, the Accept method of a listener. While descriptors or kernel
// memory are exhausted, the returned function retries every 100 ms, so that clients wait in
// the socket's backlog; it logs that at most once a minute. It also retries after
// ECONNABORTED.
func Patiently[C net.Conn](log *slog.Logger, accept func() (C, error)) func() (C, error) {
	var lastLogged time.Time
	return func() (C, error) {
		for {
			conn, err := accept()
			switch {
			case errors.Is(err, unix.ECONNABORTED):
			case !isExhausted(err):
				return conn, err
			default:
				if now := time.Now(); lastLogged.IsZero() || now.Sub(lastLogged) >= exhaustedLogEvery {
					lastLogged = now
					log.Warn("cannot accept connections at the moment; clients wait", "err", err)
				}
				time.Sleep(exhaustedPause)
			}
		}
	}
}

// patient is a listener whose Accept retries as Patiently describes.
type patient struct {
	net.Listener
	accept func() (net.Conn, error)
}

// Patient returns a listener whose Accept waits while descriptors are exhausted; see
// Patiently.
func Patient(log *slog.Logger, l net.Listener) net.Listener {
	return &patient{l, Patiently(log, l.Accept)}
}

func (p *patient) Accept() (net.Conn, error) { return p.accept() }
