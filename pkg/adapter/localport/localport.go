// Package localport finds ports of this machine for instances to listen on.
package localport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Port is one that an instance is going to listen on.
type Port struct {
	Number int
	claim  *os.File // locked at the byte of that number
}

// Release lets others have the port, once the instance listens on it or has
// ended.
func (p Port) Release() { _ = p.claim.Close() }

// Take finds a port that nobody listens on, and that no other instance of the
// user is going to listen on either. Claims are kept in the run directory where
// there is no better place.
func Take(runDir string) (p Port, err error) {
	const attempts = 100
	for i := range attempts {
		number := 0 // any
		if i < attempts/2 {
			number = quietPort()
		}
		if p, err = takePort(runDir, number); !errors.Is(err, unix.EADDRINUSE) {
			return p, err
		}
	}
	return p, err
}

// quietPort is a port beyond those that the system gives to whoever asks for
// any, as all do that connect: such a one could be gone before its instance
// listens. Where there are none it is 0, for any.
func quietPort() int {
	const last = 65535
	_, high, err := procfs.LocalPorts()
	if err != nil || high >= last {
		return 0
	}
	return high + 1 + rand.IntN(last-high)
}

// strict listens only where any program can: connections that were closed a moment
// ago keep a port from those that do not say that it may be used again.
var strict = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) })
	return errors.Join(failed, err)
}}

// takePort takes a port, or any if its number is 0, if nobody listens on it, at any
// address, or has taken it. It is free again before its instance listens, and the
// system may offer it to whoever else starts instances; so the taking is by a lock in a
// file that all of the user's programs share. Between users the one who listens first
// has it.
func takePort(runDir string, number int) (Port, error) {
	if number == 0 {
		var err error
		if number, err = listen(0); err != nil {
			return Port{}, err
		}
	}
	p, err := claim(runDir, number)
	if err != nil {
		return Port{}, err
	}
	// Whether it is free can only be found by having it for a moment: not one that
	// somebody has taken and is about to listen on.
	if _, err := listen(number); err != nil {
		p.Release()
		return Port{}, err
	}
	return p, nil
}

// listen listens on a port, or any if it is 0, and returns it when it no longer does.
func listen(number int) (int, error) {
	l, err := strict.Listen(context.Background(), "tcp4", ":"+strconv.Itoa(number))
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// claim takes a port from all that do the same.
func claim(runDir string, number int) (Port, error) {
	claims, err := openClaims(sharedClaims(), filepath.Join(runDir, "ports"))
	if err != nil {
		return Port{}, err
	}
	// Of the open file, not of the process, which may start many; and gone when it is.
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(number), Len: 1}
	err = unix.FcntlFlock(claims.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		err = unix.EADDRINUSE
	}
	if err != nil {
		_ = claims.Close()
		return Port{}, fmt.Errorf("port %d: %w", number, err)
	}
	return Port{number, claims}, nil
}

// sharedClaims is the folder of the claims of all of the user's run directories.
func sharedClaims() string { return fmt.Sprintf("/dev/shm/gfaas-%d", os.Geteuid()) }

// openClaims opens the file of claims in the first of the folders that can be
// used: anybody can put something in the place of the shared one, and must stop
// nobody by it.
func openClaims(dirs ...string) (f *os.File, err error) {
	for _, dir := range dirs {
		if f, err = openClaimsIn(dir); err == nil {
			return f, nil
		}
	}
	return nil, err
}

func openClaimsIn(dir string) (*os.File, error) {
	if err := owndir.Ensure(dir); err != nil {
		return nil, err
	}
	root, err := owndir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile("ports.lock", os.O_RDWR|os.O_CREATE, 0o600)
}
