package chassis

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// scarcePause is between two tries to accept somebody for whom there is no
	// descriptor, or no memory in the kernel.
	scarcePause = 100 * time.Millisecond
	// scarceSaid is for how long that is not said again.
	scarceSaid = time.Minute
)

// scarce reports whether an error is that the process, or the machine, has no
// descriptors or memory left for now.
func scarce(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Patiently accepts as a listener does, of which it is the method. While that has no
// descriptors left it waits for some, and who calls waits too; it says so once, and
// no more often than each minute.
func Patiently[C net.Conn](log *slog.Logger, accept func() (C, error)) func() (C, error) {
	var said time.Time
	return func() (C, error) {
		for {
			conn, err := accept()
			switch {
			case errors.Is(err, unix.ECONNABORTED):
			case !scarce(err):
				return conn, err
			default:
				if now := time.Now(); said.IsZero() || now.Sub(said) >= scarceSaid {
					said = now
					log.Warn("cannot accept for now: who calls waits", "err", err)
				}
				time.Sleep(scarcePause)
			}
		}
	}
}

// patient is a listener that accepts so.
type patient struct {
	net.Listener
	accept func() (net.Conn, error)
}

// Patient is a listener whose Accept waits where it has no descriptors.
func Patient(log *slog.Logger, l net.Listener) net.Listener {
	return &patient{l, Patiently(log, l.Accept)}
}

func (p *patient) Accept() (net.Conn, error) { return p.accept() }
