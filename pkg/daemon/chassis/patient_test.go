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

// short is a listener that is out of descriptors a few times.
type short struct {
	net.Listener
	errs []error
}

func (s *short) Accept() (net.Conn, error) {
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: err}
	}
	return nil, net.ErrClosed
}

// Who is out of descriptors says so once, and goes on when there are some.
func TestPatient(t *testing.T) {
	var said bytes.Buffer
	l := Patient(slog.New(slog.NewTextHandler(&said, nil)), &short{errs: []error{unix.EMFILE, unix.ECONNABORTED, unix.EMFILE, unix.ENFILE, unix.ENOMEM}})
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	if n := strings.Count(said.String(), "cannot accept"); n != 1 {
		t.Errorf("said %d times: %s", n, said.String())
	}
}
