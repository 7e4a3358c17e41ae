package process

import (
	"errors"
	"net"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A port is nobody else's between the time that it is found and the time that
// its instance listens on it.
func TestPortIsTakenOnce(t *testing.T) {
	first, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first.number))
	if _, err := takePort(address); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("taken twice: %v", err)
	}
	l, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatalf("its instance cannot listen: %v", err)
	}
	first.release()
	if _, err := takePort(address); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("taken while somebody listens: %v", err)
	}
	_ = l.Close()
	again, err := takePort(address)
	if err != nil {
		t.Fatalf("taken after it was given back: %v", err)
	}
	again.release()
}
