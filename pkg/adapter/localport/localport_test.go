package localport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// A port blocked by its previous owner's closed connections is not allocated, because some
// programs could not listen on it.
func TestPortOfClosedConnections(t *testing.T) {
	taken, err := Allocate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(taken.Number)))
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close() // the side that closes first keeps the port for a while
	_, _ = io.Copy(io.Discard, client)
	_ = client.Close()
	_ = l.Close()
	taken.Release()
	if again, err := allocatePort(t.TempDir(), taken.Number); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("second allocation of the port: got the error %v, want %v", err, unix.EADDRINUSE)
		if err == nil {
			again.Release()
		}
	}
}

// A port is reserved between its allocation and the time at which its instance listens.
func TestPortIsAllocatedOnce(t *testing.T) {
	first, err := Allocate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := allocatePort(t.TempDir(), first.Number); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("second allocation of the port: got the error %v, want %v", err, unix.EADDRINUSE)
	}
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.2", strconv.Itoa(first.Number)))
	if err != nil {
		t.Fatalf("listen on the allocated port: %v", err)
	}
	first.Release()
	if _, err := allocatePort(t.TempDir(), first.Number); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("allocation of a port with a listener: got the error %v, want %v", err, unix.EADDRINUSE)
	}
	_ = l.Close()
	again, err := allocatePort(t.TempDir(), first.Number)
	if err != nil {
		t.Fatalf("allocate the port again after its release: %v", err)
	}
	again.Release()
}

// Allocating a port never blocks, even for a moment, an instance that is about to listen on
// its own port.
func TestAllocationDoesNotBlockPort(t *testing.T) {
	dir := t.TempDir()
	p, err := Allocate(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	var over atomic.Bool
	var others sync.WaitGroup
	defer others.Wait()
	defer over.Store(true)
	others.Go(func() {
		for !over.Load() {
			if other, err := allocatePort(dir, p.Number); err == nil {
				other.Release()
				t.Errorf("second allocation of port %d: got no error, want one", p.Number)
			}
		}
	})
	for n := range 2000 {
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)))
		if err != nil {
			t.Fatalf("the instance cannot listen on its port, at attempt %d: %v", n, err)
		}
		_ = l.Close()
	}
}

// A program that requests any port, as every outgoing connection does, does not get the
// port of an instance that is about to listen.
func TestPortIsOutsideEphemeralRange(t *testing.T) {
	p, err := Allocate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var low, high int
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		t.Fatal(err)
	}
	if p.Number <= high && high < 65535 {
		t.Errorf("allocated port: got %d, want one outside %d to %d", p.Number, low, high)
	}
}

// Names that other users can create do not prevent an allocation.
func TestPortWithForeignName(t *testing.T) {
	p, err := Allocate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	name, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: fmt.Sprintf("@gfaas/port/%d", p.Number)})
	if err != nil {
		t.Fatal(err)
	}
	defer name.Close()
	again, err := allocatePort(t.TempDir(), p.Number)
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

// A shared folder that another user has created does not prevent it either.
func TestPortWithForeignFolder(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"another user's": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 64999, 64999)) },
		"open to all":    func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
		"link":           func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"file":           func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" && os.Geteuid() != 0 {
				t.Skip("SKIPPED: only root can make another user's folder")
			}
			shared, own := filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "own")
			if err := spoil(shared); err != nil {
				t.Fatal(err)
			}
			f, err := openClaims(shared, own)
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			if _, err := os.Stat(filepath.Join(own, "ports.lock")); err != nil {
				t.Error(err)
			}
		})
	}
}
