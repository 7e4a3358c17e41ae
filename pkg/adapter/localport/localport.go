// Package localport allocates TCP ports of this machine for instances. pkg/adapter/process
// and pkg/adapter/docker use it.
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

// Port is a port that an instance will listen on.
type Port struct {
	Number int
	lock   *os.File // holds a lock on the byte at offset Number
}

// Release allows others to allocate the port. Call it after the instance has started to
// listen or has ended.
func (p Port) Release() { _ = p.lock.Close() }

// Allocate allocates a port on which no program listens and that is not allocated to another
// instance of the user. The claims are in a folder shared by the user's run directories or,
// if that is unusable, in the run directory.
func Allocate(runDir string) (p Port, err error) {
	const attempts = 100
	for i := range attempts {
		number := 0 // any port
		if i < attempts/2 {
			number = quietPort()
		}
		if p, err = allocatePort(runDir, number); !errors.Is(err, unix.EADDRINUSE) {
			return p, err
		}
	}
	return p, err
}

// quietPort returns a random port above the system's ephemeral range, or 0 if there is
// none. Outgoing connections use ephemeral ports, so one could be in use before its
// instance listens.
func quietPort() int {
	const last = 65535
	_, high, err := procfs.LocalPorts()
	if err != nil || high >= last {
		return 0
	}
	return high + 1 + rand.IntN(last-high)
}

// strict listens without SO_REUSEADDR, so it succeeds only if any program could listen:
// connections in TIME_WAIT block a port for programs that do not set the option.
var strict = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) })
	return errors.Join(failed, err)
}}

// allocatePort allocates a port, or any port if number is 0. It returns EADDRINUSE if a program
// listens on the port or has claimed it. The port is free until the instance listens, so
// allocatePort also locks it in a file that all programs of the user share. Programs of other
// users do not see the lock; the first one to listen gets the port.
func allocatePort(runDir string, number int) (Port, error) {
	if number == 0 {
		var err error
		if number, err = listen(0); err != nil {
			return Port{}, err
		}
	}
	p, err := lockPort(runDir, number)
	if err != nil {
		return Port{}, err
	}
	// Testing a port occupies it for a moment, so test only after the claim, not while
	// another program is about to listen.
	if _, err := listen(number); err != nil {
		p.Release()
		return Port{}, err
	}
	return p, nil
}

// listen listens on a port, or any port if number is 0, closes it and returns its number.
func listen(number int) (int, error) {
	l, err := strict.Listen(context.Background(), "tcp4", ":"+strconv.Itoa(number))
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// lockPort locks a port among the programs of the user.
func lockPort(runDir string, number int) (Port, error) {
	claims, err := openClaims(sharedClaims(), filepath.Join(runDir, "ports"))
	if err != nil {
		return Port{}, err
	}
	// An open file description lock: one process may hold several, and closing the file
	// releases it.
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

// sharedClaims returns the folder of claims for all run directories of the user.
func sharedClaims() string { return fmt.Sprintf("/dev/shm/gfaas-%d", os.Geteuid()) }

// openClaims opens the file of claims in the first usable folder. Other users can make the
// shared folder unusable by creating it, which must not stop this user.
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
