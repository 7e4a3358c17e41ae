package process

import (
	"errors"
	"fmt"
	"net"
	"os"
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
	if _, err := takePort(first.number); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("taken twice: %v", err)
	}
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.2", strconv.Itoa(first.number)))
	if err != nil {
		t.Fatalf("its instance cannot listen: %v", err)
	}
	first.release()
	if _, err := takePort(first.number); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("taken while somebody listens: %v", err)
	}
	_ = l.Close()
	again, err := takePort(first.number)
	if err != nil {
		t.Fatalf("taken after it was given back: %v", err)
	}
	again.release()
}

// What asks for any port, as whatever connects does, is not given one that an
// instance is about to listen on.
func TestPortIsNoneOfTheSystems(t *testing.T) {
	p, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	defer p.release()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var low, high int
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		t.Fatal(err)
	}
	if p.number <= high && high < 65535 {
		t.Errorf("port %d, of %d to %d", p.number, low, high)
	}
}
