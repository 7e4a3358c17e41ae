package hooktest

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/wire"
)

// fake is a token daemon whose every step a test controls.
type fake struct {
	*host
	listener *net.UnixListener
	flags    uint32               // of the pages
	limit    uint64               // on memory, of the pages
	used     uint32               // slots of the pages in use; 0: pages of an older daemon
	slot     int                  // of each process; 0 means slotNumber
	length   time.Duration        // of a lease that is not renewed; 0 means unlimited
	opened   func(*net.UnixConn)  // handles connections in place of the fake daemon; nil: it does itself
	page     func(m *member) bool // answers a hello; false: the default answer follows
	hello    func(m *member)      // called before the welcome, with the page already made
	mu       sync.Mutex
	members  []*member
	lease    uint32
}

// member is the connection of a process for one device.
type member struct {
	f            *fake
	hello        wire.Hello
	conn         *net.UnixConn
	mem          []byte
	requests     atomic.Int64 // including returns that want more, since the gate was last opened
	grantAlways  atomic.Bool  // opens the gate on every request
	disconnected atomic.Bool
	mu           sync.Mutex
	returns      []wire.Return
	endings      []wire.Ending
	faults       []wire.Fault
}

// newFake returns a fake daemon on a simulated machine. It does not listen yet.
func newFake(t testing.TB) *fake {
	t.Helper()
	return &fake{host: newHost(t)}
}

// listen opens the socket, as a starting daemon does.
func (f *fake) listen() {
	f.t.Helper()
	dir := tokend.ClientSocketDir(f.runDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	var err error
	f.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "token.sock"), Net: "unixpacket"})
	if err != nil {
		f.t.Fatal(err)
	}
	go f.accept(f.listener)
	f.t.Cleanup(f.stop)
}

// stop ends the daemon: its connections break, and its gates stay as they are.
func (f *fake) stop() {
	f.listener.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		m.conn.Close()
	}
	f.members = nil
}

func (f *fake) accept(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go f.serve(conn)
	}
}

func (f *fake) serve(conn *net.UnixConn) {
	defer conn.Close()
	if f.opened != nil {
		f.opened(conn)
		return
	}
	buf := make([]byte, wire.MaxMessage)
	n, err := conn.Read(buf)
	if err != nil {
		return
	}
	msg, err := wire.Parse(buf[:n])
	hello, ok := msg.(wire.Hello)
	if err != nil || !ok {
		f.t.Errorf("first message of a client: got %v, %v; want Hello", msg, err)
		return
	}
	m := &member{f: f, hello: hello, conn: conn}
	if !m.welcome() {
		return
	}
	defer m.disconnected.Store(true)
	f.mu.Lock()
	f.members = append(f.members, m)
	f.mu.Unlock()
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		switch msg, err := wire.Parse(buf[:n]); msg := msg.(type) {
		case wire.Request:
			m.handleRequest(true)
		case wire.Ending:
			m.mu.Lock()
			m.endings = append(m.endings, msg)
			m.mu.Unlock()
		case wire.Fault:
			m.mu.Lock()
			m.faults = append(m.faults, msg)
			m.mu.Unlock()
		case wire.Return:
			m.mu.Lock()
			m.returns = append(m.returns, msg)
			m.mu.Unlock()
			m.handleRequest(msg.Flags&wire.ReturnWantsMore != 0)
		default:
			f.t.Errorf("message of a client: got %v, %v; want Request, Ending, Fault or Return", msg, err)
			return
		}
	}
}

// slotNumber is an arbitrary slot other than the first.
const slotNumber = 5

// welcome answers the hello. It returns false if the test's page function has answered
// instead.
func (m *member) welcome() bool {
	if m.f.page != nil && m.f.page(m) {
		return false
	}
	size := wire.PageSize
	if m.f.used > 0 {
		size = wire.PageSizeMost
	}
	file := memfd(m.f.t, int64(size), unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	defer file.Close()
	var err error
	if m.mem, err = unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		m.f.t.Error(err)
		return false
	}
	header := wire.PageHeader{
		Magic: wire.Magic, NSlots: wire.PageSlots, MemLimit: m.f.limit, Flags: m.f.flags, LeaseNS: uint64(m.f.length), Used: m.f.used,
	}
	if _, err := binary.Encode(m.mem, binary.LittleEndian, header); err != nil {
		m.f.t.Error(err)
	}
	if m.f.hello != nil {
		m.f.hello(m)
	}
	return m.send(wire.Welcome{Slot: uint32(m.place()), NSlots: wire.PageSlots, WindowNS: 1e8}, file)
}

func (m *member) send(msg wire.Message, file *os.File) bool {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err := m.conn.WriteMsgUnix(wire.Append(nil, msg), rights, nil)
	return err == nil
}

// env returns the environment of a process that sees the given number of GPUs.
func (f *fake) env(gpus int) []string {
	var more []string
	for n := 1; n < gpus; n++ {
		more = append(more, fmt.Sprint("sim:", n))
	}
	return append(f.environ("fake", "secret", whole, more...), fmt.Sprintf("GFAAS_SIM_GPU=count=%d", gpus))
}

// memfd returns a file in memory with the given size and seals.
func memfd(t testing.TB, size int64, seals int) *os.File {
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		t.Error(err)
	}
	return os.NewFile(uintptr(fd), "fake")
}

// member waits for the process's connection for a device.
func (f *fake) member(device uint32) (found *member) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("the process is connected for device %d", device), func() bool {
		found = f.find(device)
		return found != nil
	})
	return found
}

func (f *fake) find(device uint32) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if m.hello.Device == device && !m.disconnected.Load() {
			return m
		}
	}
	return nil
}

func (m *member) place() int {
	if m.f.slot > 0 {
		return m.f.slot
	}
	return slotNumber
}

func (m *member) slot() *wire.PageSlot { return m.slotOf(m.place()) }

// slotOf returns the page's slot n, which may be another process's.
func (m *member) slotOf(n int) *wire.PageSlot {
	return (*wire.PageSlot)(unsafe.Pointer(&m.mem[wire.PageSlotsOffset+n*wire.PageSlotSize]))
}

func (m *member) blocks() uint64 { return atomic.LoadUint64(&m.slot().Blocks) }

// handleRequest records that the process wants a lease.
func (m *member) handleRequest(wants bool) {
	if !wants {
		return
	}
	m.requests.Add(1)
	if m.grantAlways.Load() {
		m.grant()
	}
}

// grant opens the gate if it was requested; of two concurrent calls, one opens it.
func (m *member) grant() {
	if m.requests.Swap(0) > 0 {
		m.open()
	}
}

// alwaysGrant opens the gate if it was requested, and on every later request.
func (m *member) alwaysGrant() {
	m.grantAlways.Store(true)
	m.grant()
}

// awaitRequest waits until the process requests a lease.
func (m *member) awaitRequest() {
	m.f.t.Helper()
	m.f.eventually("the process requests a lease", func() bool { return m.requests.Load() > 0 })
}

// open opens the gate with a new lease.
func (m *member) open() uint32 {
	m.requests.Store(0)
	lease := atomic.AddUint32(&m.f.lease, 1)
	if lease == 0 { // 0 means no lease
		lease = atomic.AddUint32(&m.f.lease, 1)
	}
	atomic.StoreUint32(&m.slot().Gate, lease)
	wake(&m.slot().Gate)
	return lease
}

// close closes the gate and asks for the lease.
func (m *member) close(lease uint32) {
	atomic.StoreUint32(&m.slot().Gate, 0)
	m.send(wire.LeaseEnd{Lease: lease}, nil)
}

// returnedLeases returns all leases that the process has returned.
func (m *member) returnedLeases() []wire.Return {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.returns)
}

// awaitReturn waits until the process returns the lease.
func (m *member) awaitReturn(lease uint32) (back wire.Return) {
	m.f.t.Helper()
	m.f.eventually(fmt.Sprintf("the process returns lease %d", lease), func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, r := range m.returns {
			if r.Lease == lease {
				back = r
				return true
			}
		}
		return false
	})
	return back
}

// budget sets how many blocks may be launched in total.
func (m *member) budget(blocks uint64) {
	atomic.StoreUint64(&m.slot().Budget, blocks)
	atomic.AddUint32(&m.slot().Refill, 1)
	wake(&m.slot().Refill)
}

// renew renews the leases of the page.
func (m *member) renew() {
	atomic.AddUint32(&(*wire.PageHeader)(unsafe.Pointer(&m.mem[0])).Renewals, 1)
}

func wake(word *uint32) {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}
