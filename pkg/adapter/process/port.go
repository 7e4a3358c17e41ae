package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
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
	for i := range attempts {
		number := 0 // any
		if i < attempts/2 {
			number = quietPort()
		}
		if p, err = takePort(number); !errors.Is(err, unix.EADDRINUSE) {
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

// takePort takes a port, if nobody listens on it, at any address, or has taken it.
// It is free again before its instance listens, and the system may offer it to
// whoever else starts instances; so the taking is by a name of abstract sockets:
// they are of the same network namespace as ports, whoever starts instances there
// sees them, and they are gone when their process is.
func takePort(number int) (port, error) {
	l, err := net.Listen("tcp4", ":"+strconv.Itoa(number))
	if err != nil {
		return port{}, err
	}
	defer l.Close()
	number = l.Addr().(*net.TCPAddr).Port
	claim, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: fmt.Sprintf("@gfaas/port/%d", number)})
	return port{number, claim}, err
}
