package process

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// port is one that an instance is going to listen on.
type port struct {
	number int
	claim  *net.UnixConn
}

// release lets others have the port, once the instance listens on it or has
// ended.
func (p port) release() { _ = p.claim.Close() }

// freePort finds a port that nobody listens on, and that no other instance is
// going to listen on either.
func freePort() (p port, err error) {
	const attempts = 100
	for range attempts {
		if p, err = takePort("127.0.0.1:0"); !errors.Is(err, unix.EADDRINUSE) {
			return p, err
		}
	}
	return p, err
}

// takePort takes the port of an address, if nobody listens on it or has taken it.
// It is free again before its instance listens, and the system may offer it to
// whoever else starts instances; so the taking is by a name of abstract sockets:
// they are of the same network namespace as ports, whoever starts instances there
// sees them, and they are gone when their process is.
func takePort(address string) (port, error) {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return port{}, err
	}
	defer l.Close()
	number := l.Addr().(*net.TCPAddr).Port
	claim, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: fmt.Sprintf("@gfaas/port/%d", number)})
	return port{number, claim}, err
}
