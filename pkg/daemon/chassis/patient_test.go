package chassis

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// exhaustedListener is a listener that lacks descriptors a few times.
type exhaustedListener struct {
	net.Listener
	errs []error
}

func (s *exhaustedListener) Accept() (net.Conn, error) {
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: err}
	}
	return nil, net.ErrClosed
}

// A lack of descriptors is logged once, and accepting continues afterwards.
func TestPatient(t *testing.T) {
	var log bytes.Buffer
	l := Patient(slog.New(slog.NewTextHandler(&log, nil)), &exhaustedListener{errs: []error{unix.EMFILE, unix.ECONNABORTED, unix.EMFILE, unix.ENFILE, unix.ENOMEM}})
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after failures: got %v, want net.ErrClosed", err)
	}
	if n := strings.Count(log.String(), "cannot accept"); n != 1 {
		t.Errorf("messages \"cannot accept\": got %d, want 1, in the log\n%s", n, log.String())
	}
}
