package hooktest

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// TestBadPages answers hellos with invalid pages, or not at all. The process prints one
// message, lives, and continues when it gets a valid page.
func TestBadPages(t *testing.T) {
	t.Parallel()
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	null := func() *os.File {
		file, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
		}
		return file
	}
	page := func(size int64, seals int, header wire.PageHeader) func() *os.File {
		return func() *os.File {
			file := memfd(t, size, 0)
			if size > 0 {
				head, _ := binary.Append(nil, binary.LittleEndian, header)
				if _, err := file.WriteAt(head, 0); err != nil {
					t.Error(err)
				}
			}
			if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
				t.Error(err)
			}
			return file
		}
	}
	good := wire.PageHeader{Magic: wire.Magic, NSlots: wire.PageSlots}
	welcome := wire.Append(nil, wire.Welcome{Slot: 1, NSlots: wire.PageSlots})
	bent := func(at int, b byte) []byte {
		out := append([]byte(nil), welcome...)
		out[at] = b
		return out
	}
	bad := []struct {
		name   string
		answer []byte
		file   func() *os.File
	}{
		{"no descriptor", welcome, nil},
		{"no memory", welcome, null},
		{"empty", welcome, page(0, sealed, good)},
		{"short", welcome, page(wire.PageSize-1, sealed, good)},
		{"unsealed", welcome, page(wire.PageSize, 0, good)},
		{"no page", welcome, page(wire.PageSize, sealed, wire.PageHeader{})},
		{"few slots", welcome, page(wire.PageSize, sealed, wire.PageHeader{Magic: wire.Magic, NSlots: 4})},
		{"no such slot", wire.Append(nil, wire.Welcome{Slot: wire.PageSlots, NSlots: wire.PageSlots}), page(wire.PageSize, sealed, good)},
		{"wrong magic", bent(0, 'X'), page(wire.PageSize, sealed, good)},
		{"wrong version", bent(6, 9), page(wire.PageSize, sealed, good)},
		{"wrong size", bent(8, 9), page(wire.PageSize, sealed, good)},
		{"short message", welcome[:len(welcome)-1], page(wire.PageSize, sealed, good)},
		{"long message", append(append([]byte(nil), welcome...), make([]byte, 4000)...), page(wire.PageSize, sealed, good)},
		{"other message", wire.Append(nil, wire.LeaseEnd{Lease: 1}), page(wire.PageSize, sealed, good)},
		{"nothing", nil, nil},
	}
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			var hellos atomic.Int64
			f.page = func(m *member) bool {
				if hellos.Add(1) > 3 {
					return false
				}
				if tt.answer != nil {
					var rights []byte
					if tt.file != nil {
						file := tt.file()
						defer file.Close()
						rights = unix.UnixRights(int(file.Fd()), int(file.Fd())) // one descriptor too many
					}
					if _, _, err := m.conn.WriteMsgUnix(tt.answer, rights, nil); err != nil {
						t.Error(err)
					}
				}
				return true
			}
			f.listen()
			p := f.run(f.env(1), "check/drive", "10")
			p.order(kernels{blocks: 1, count: 10})
			f.member(0).alwaysGrant()
			f.eventually("the program has launched 10 kernels", func() bool { f.alive(p, tt.name); return p.launches(0, 0) == 10 })
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
			for _, fd := range fds {
				if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.cmd.Process.Pid, fd.Name())); strings.Contains(to, "memfd:fake") {
					t.Errorf("open files of the process: got %s, want no page of a refused daemon", to)
				}
			}
			if err != nil {
				t.Error(err)
			}
			if err := p.wait(); err != nil {
				t.Error(err)
			}
			output := p.errout.String()
			if want := min(1, len(tt.answer)); strings.Count(output, "\n") != want || want == 1 && !strings.Contains(output, "is not gfaas-tokend") {
				t.Errorf("messages of the program: want %d with \"is not gfaas-tokend\", got\n%s", want, output)
			}
		})
	}
}

// TestRestarts lets several daemons welcome a process in succession. The process keeps
// no page of a previous daemon.
func TestRestarts(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	p := f.run(f.env(1), "check/drive", "10")
	for n := 1; n <= 20; n++ {
		p.order(kernels{blocks: 1, count: 10})
		m := f.member(0)
		m.alwaysGrant()
		f.eventually(fmt.Sprintf("the program has launched %d kernels", 10*n), func() bool { f.alive(p, "drive"); return p.launches(0, 0) == 10*n })
		f.stop()
		f.listen()
	}
	f.eventually("the process has mapped one page", func() bool { // it may be about to map the next page over it
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.cmd.Process.Pid))
		return err == nil && strings.Count(string(maps), "memfd:fake") == 1
	})
}

// TestLeaseEnds asks for leases that do not exist or have been returned already. The
// process returns no lease in response.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	p := f.run(f.env(1), "check/drive", "10")
	p.order(kernels{blocks: 1, count: 1}) // with more launches, it might need a second lease on a busy host
	m := f.member(0)
	m.awaitRequest()
	atomic.StoreUint32(&f.lease, 1<<32-2) // the highest number is a valid lease
	m.open()
	f.eventually("the program has launched a kernel", func() bool { return p.launches(0, 0) == 1 })
	m.awaitReturn(1<<32 - 1)
	for range 3 {
		m.close(1<<32 - 1)
		m.close(0)
	}
	m.send(wire.Welcome{}, nil)
	m.send(wire.Refused{}, nil)
	m.alwaysGrant()
	p.order(kernels{blocks: 1, count: 10})
	f.eventually("the program has launched 11 kernels", func() bool { return p.launches(0, 0) == 11 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, back := range m.returns[1:] {
		if back.Lease == 0 || back.Lease == 1<<32-1 {
			t.Errorf("returned lease: got %+v, want none that does not exist or was returned before", back)
		}
	}
}

// TestLeaseNotRenewed checks that a lease lasts while it is renewed. When it is not
// renewed, the gate closes, the launched work finishes and the lease is returned, with
// one message.
func TestLeaseNotRenewed(t *testing.T) {
	t.Parallel()
	for end := time.Now().Add(2 * patience); !leaseNotRenewed(t); {
		if time.Now().After(end) {
			t.Fatalf("the test could not renew the lease in time in any run within %v, want one such run", 2*patience)
		}
		t.Log("the host kept this test from renewing it in time: once more")
	}
}

// leaseNotRenewed returns false if the run proves nothing: the lease expired because
// the test, which renews it, did not run for half of its length, or the process
// returned the lease without being asked because it could not launch.
func leaseNotRenewed(t *testing.T) bool {
	f := newFake(t)
	f.length = time.Second
	f.listen()
	p := f.run(f.env(1), "check/drive", "1000")
	p.order(kernels{blocks: 1, count: 6000})
	m := f.member(0)
	m.awaitRequest()
	lease := m.open()
	started := time.Now()
	open, delayed := true, false
	renewed := started
	for ; open && time.Since(started) <= 3*f.length; time.Sleep(5 * time.Millisecond) {
		delayed = delayed || time.Since(renewed) > f.length/2
		m.renew()
		renewed = time.Now()
		open = atomic.LoadUint32(&m.slot().Gate) == lease
	}
	if !open {
		m.awaitReturn(lease)
		if delayed || p.errout.String() == "" {
			p.kill()
			return false
		}
		t.Fatalf("renewed lease: the gate closed after %v, want it open for %v", time.Since(started), 3*f.length)
	}
	if text := p.errout.String(); time.Since(renewed) > f.length/2 {
		p.kill()
		return false
	} else if text != "" {
		t.Errorf("messages while the lease is renewed: want none, got\n%s", text)
	}
	m.awaitReturn(lease)
	elapsed := time.Since(started)
	for heard := time.Now(); p.errout.String() == ""; time.Sleep(5 * time.Millisecond) {
		if time.Since(heard) > f.length { // it prints the message before it returns the lease
			p.kill()
			return false
		}
	}
	done := int(atomic.LoadUint64(&m.slot().Launches)) // the output of the last launch may still be missing
	if elapsed < 4*f.length-f.length/10 {
		t.Errorf("lease that is not renewed: returned after %v, want at least %v", elapsed, 4*f.length-f.length/10)
	}
	f.eventually(fmt.Sprintf("the program has reported %d launches", done), func() bool { return p.launches(0, 0) >= done })
	started = time.Now()
	f.eventually("200 ms have passed", func() bool { return time.Since(started) > 200*time.Millisecond })
	if now := p.launches(0, 0); now != done || done == 6000 {
		t.Errorf("launches after the end of the lease: got %d, want the %d from before, fewer than 6000", now, done)
	}
	if text := p.errout.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "does not answer") {
		t.Errorf("messages after the end of the lease: want one line with \"does not answer\", got\n%s", text)
	}
	m.awaitRequest()
	m.alwaysGrant() // also later, if the host keeps this test from renewing the lease
	f.eventually("the program has made all 6000 launches", func() bool { m.renew(); return p.launches(0, 0) == 6000 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	return true
}

// TestOtherVersion lets the library find a daemon that hangs up, as a daemon with an
// older protocol does. The library prints a message and keeps trying.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var hellos atomic.Int64
	f.page = func(*member) bool { hellos.Add(1); return true }
	f.listen()
	p := f.run(f.env(1), "check/drive", "10")
	p.order(kernels{blocks: 1, count: 10})
	f.eventually("the program prints a message and reconnects ten times", func() bool { return hellos.Load() > 10 && p.errout.String() != "" })
	if text := p.errout.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, fmt.Sprintf("version %d", wire.Version)) {
		t.Errorf("messages of the program: want one line with version %d, got\n%s", wire.Version, text)
	}
	if n := p.launches(0, 0); n != 0 {
		t.Errorf("%d launches, want 0", n)
	}
}
