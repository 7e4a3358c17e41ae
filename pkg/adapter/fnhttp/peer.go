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

// wrongListenerError reports that the listener at an instance's address is not the instance.
type wrongListenerError struct{ reason string }

func (e *wrongListenerError) Error() string { return e.reason }

func wrongListener(format string, args ...any) error {
	return &wrongListenerError{fmt.Sprintf(format, args...)}
}

// unreachable reports whether connecting failed because of the instance: no program accepts
// the connection, or another one would. Other errors, such as a lack of descriptors, are
// local and prove nothing about the instance.
func unreachable(err error) bool {
	var other *wrongListenerError
	return errors.As(err, &other) || slices.ContainsFunc([]error{
		context.DeadlineExceeded, // the dialer's time limit
		syscall.ETIMEDOUT, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH,
	}, func(reason error) bool { return errors.Is(err, reason) })
}

// checkPeer verifies that a new connection leads to the instance, before anything is sent
// on it: after an instance has ended, another program can listen on its port. It returns a
// *wrongListenerError if the peer is another program, and another error if the peer cannot be
// determined. A connection's peer never changes, so one check suffices.
//
// The peer must belong to the daemon's own user. The peer for a container may also be
// root's, like the container engine's proxy, or in another network namespace; the same
// applies to an instance whose handle is unknown.
func checkPeer(h instance.Handle, conn net.Conn) error {
	process := h.Runtime == instance.Process && h.PID > 0
	if process {
		lives, err := procfs.Lives(h.PID, h.StartTime)
		if err != nil {
			return fmt.Errorf("check whether process %d still listens at %s: %w", h.PID, h.Address, err)
		}
		if !lives {
			return wrongListener("process %d, which should listen at %s, has ended", h.PID, h.Address)
		}
	}
	local, ok := conn.LocalAddr().(*net.TCPAddr)
	remote, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return nil
	}
	uid, found, err := procfs.SocketUser(remote.AddrPort(), local.AddrPort())
	if err != nil {
		return fmt.Errorf("find the user of the program that listens at %s: %w", remote, err)
	}
	switch own := os.Geteuid(); {
	case found && uid == own, !process && (!found || uid == 0):
		return nil
	case !found:
		return wrongListener("no program of this machine listens at %s", remote)
	default:
		return wrongListener("a program of user %d listens at %s instead of the instance", uid, remote)
	}
}
