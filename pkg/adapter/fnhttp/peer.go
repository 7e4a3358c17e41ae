package fnhttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// strangerError says that who listens at an instance's address is not the instance.
type strangerError struct{ why string }

func (e *strangerError) Error() string { return e.why }

func stranger(format string, args ...any) error {
	return &strangerError{fmt.Sprintf(format, args...)}
}

// unreachable says whether no connection could be made because of the instance: nobody
// takes it, or somebody else would. Anything else is this process's own, such as that
// it has no descriptor left, and may be of instances that are well.
func unreachable(err error) bool {
	var other *strangerError
	return errors.As(err, &other) || slices.ContainsFunc([]error{
		context.DeadlineExceeded, // of the dialer
		syscall.ETIMEDOUT, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH,
	}, func(why error) bool { return errors.Is(err, why) })
}

// checkPeer says why a new connection does not lead to the instance that it was
// made for, before anything is sent on it: the port of one that has ended can be
// anybody's by now. An error that is no *strangerError says that this cannot be seen.
// A connection that is kept leads where it led.
//
// The other end is the user's own. That of a container can be root's, as the
// engine's proxies are, or outside this machine's network; so can that of an
// instance whose handle is not known.
func checkPeer(h instance.Handle, conn net.Conn) error {
	process := h.Runtime == instance.Process && h.PID > 0
	if process {
		lives, err := procfs.Lives(h.PID, h.StartTime)
		if err != nil {
			return fmt.Errorf("see whether process %d still listens at %s: %w", h.PID, h.Address, err)
		}
		if !lives {
			return stranger("process %d, which was to listen at %s, has ended", h.PID, h.Address)
		}
	}
	here, ok := conn.LocalAddr().(*net.TCPAddr)
	there, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return nil
	}
	uid, found, err := procfs.SocketUser(there.AddrPort(), here.AddrPort())
	if err != nil {
		return fmt.Errorf("see whose program listens at %s: %w", there, err)
	}
	switch own := os.Geteuid(); {
	case found && uid == own, !process && (!found || uid == 0):
		return nil
	case !found:
		return stranger("nothing of this machine listens at %s", there)
	default:
		return stranger("a program of user %d listens at %s, and not the instance", uid, there)
	}
}
