package hooktest

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/wire"
)

// keeper replaces gfaas-tokend for one process with one gate, which the test opens and
// closes by hand.
type keeper struct {
	t    testing.TB
	dir  string
	page []byte

	mu        sync.Mutex
	conn      *net.UnixConn
	open      bool // requests are granted at once
	requested bool // a request is pending
	leases    uint32
	lease     uint32 // the current lease, until it is returned
	used      uint64 // GPU time of all returned leases, in ns
}

func newKeeper(t testing.TB) *keeper {
	t.Helper()
	dir, err := os.MkdirTemp("", "gf") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{t: t, dir: dir}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: k.socket(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	file := memfd(t, wire.PageSize, unix.F_SEAL_SHRINK)
	fd := int(file.Fd())
	if k.page, err = unix.Mmap(fd, 0, wire.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	binary.NativeEndian.PutUint32(k.page, wire.Magic)
	binary.NativeEndian.PutUint32(k.page[4:], wire.PageSlots)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			k.serve(conn, fd)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		k.mu.Lock()
		if k.conn != nil {
			k.conn.Close()
		}
		k.mu.Unlock()
		<-served
		unix.Munmap(k.page)
		file.Close()
		os.RemoveAll(dir)
	})
	return k
}

func (k *keeper) socket() string { return filepath.Join(k.dir, "token.sock") }

// environ returns the environment of a process at this gate.
func (k *keeper) environ() []string {
	k.t.Helper()
	set, err := preload.Environ(preload.Grant{
		Socket: k.socket(), Instance: "kept", Secret: preload.NewSecret(), GPU: []string{"sim"}, SMPct: 100,
		Libs: preload.Libs{Hook: filepath.Join(build, "lib/libgfaas.so"), SimDir: filepath.Join(build, "lib/sim")},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	env := append(os.Environ(), "GFAAS_SIM_DIR="+filepath.Join(k.dir, "sim"))
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}

func (k *keeper) serve(conn *net.UnixConn, fd int) {
	defer conn.Close()
	buf := make([]byte, wire.MaxMessage)
	for {
		n, err := conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		m, err := wire.Parse(buf[:n])
		if err != nil {
			k.t.Error(err)
			return
		}
		k.mu.Lock()
		switch m := m.(type) {
		case wire.Hello:
			k.conn = conn
			welcome := wire.Append(nil, wire.Welcome{NSlots: wire.PageSlots, WindowNS: 1e8})
			if _, _, err := conn.WriteMsgUnix(welcome, unix.UnixRights(fd), nil); err != nil {
				k.t.Error(err)
			}
		case wire.Request:
			k.request()
		case wire.Return:
			if m.Lease == k.lease {
				k.lease = 0
			}
			k.used += m.UsedNS
			if m.Flags&wire.ReturnWantsMore != 0 {
				k.request()
			}
		}
		k.mu.Unlock()
	}
}

func (k *keeper) gate() *uint32 { return (*uint32)(unsafe.Pointer(&k.page[wire.PageSlotsOffset])) }

// turn sets how long leases last, from now on, while other clients wait.
func (k *keeper) turn(length time.Duration) {
	slot := (*wire.PageSlot)(unsafe.Pointer(&k.page[wire.PageSlotsOffset]))
	atomic.StoreUint64(&slot.TurnNS, uint64(length))
}

// request grants a lease if the gate may open, or records the request. The caller holds
// mu.
func (k *keeper) request() {
	k.requested = !k.open
	if k.open {
		k.leases++
		k.lease = k.leases
		atomic.StoreUint32(k.gate(), k.lease)
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(k.gate())), 1 /* FUTEX_WAKE */, 1<<30, 0, 0, 0)
	}
}

// openGate opens the gate on a pending request and on every later one.
func (k *keeper) openGate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = true
	if k.requested {
		k.request()
	}
}

// drain closes the gate and waits until the last lease was returned.
func (k *keeper) drain() {
	k.t.Helper()
	k.revoke()
	(&host{t: k.t}).eventually("the process has returned its lease", k.idle)
}

// revoke closes the gate and asks for the current lease.
func (k *keeper) revoke() {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = false
	if lease := atomic.SwapUint32(k.gate(), 0); lease != 0 {
		_, err := k.conn.Write(wire.Append(nil, wire.LeaseEnd{Lease: lease}))
		if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, net.ErrClosed) { // otherwise the process has disconnected
			k.t.Error(err)
		}
	}
}

// waits reports whether a request is pending at the closed gate.
func (k *keeper) waits() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.requested && !k.open
}

// idle reports whether no lease is held.
func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lease == 0
}

func (k *keeper) slot() *wire.PageSlot {
	return (*wire.PageSlot)(unsafe.Pointer(&k.page[wire.PageSlotsOffset]))
}

// account returns the process's count of launches, and the GPU time of all leases that
// it returned.
func (k *keeper) account() (launches uint64, used time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return atomic.LoadUint64(&k.slot().Launches), time.Duration(k.used)
}

// talk is a dialogue with a program, line by line.
type talk struct {
	h    *host
	p    *program
	read int // bytes of its output
}

// line returns the program's next line, or "" once enough returns true.
func (c *talk) line(enough func() bool) string {
	c.h.t.Helper()
	var line string
	var ok bool
	c.h.eventually("the program prints a line", func() bool {
		line, _, ok = strings.Cut(c.p.out.String()[c.read:], "\n")
		if !ok {
			c.h.alive(c.p, c.p.cmd.Path)
		}
		return ok || enough()
	})
	if !ok {
		return ""
	}
	c.read += len(line) + 1
	return line
}

func (c *talk) next() string {
	c.h.t.Helper()
	return c.line(func() bool { return false })
}

func (c *talk) expect(want string) {
	c.h.t.Helper()
	if line := c.next(); line != want {
		c.h.t.Fatalf("line of the program: got %q, want %q", line, want)
	}
}

// sendLine sends a line, which lets the program continue.
func (c *talk) sendLine() {
	c.h.t.Helper()
	if _, err := c.p.in.Write([]byte("\n")); err != nil {
		c.h.t.Fatal(err)
	}
}
