package hooktest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// order has a drive program's thread launch kernels on a device.
func (p *program) order(thread, device, blocks, count int) {
	fmt.Fprintln(p.in, thread, device, blocks, count)
}

// launches is how many launches of a thread on a device have returned.
func (p *program) launches(thread, device int) int {
	return strings.Count(p.out.String(), fmt.Sprintf("%d %d\n", thread, device))
}

// TestDevices has one process work on the two GPUs of its instance, from one
// thread and from two: it is a client of each GPU.
func TestDevices(t *testing.T) {
	h := newHost(t)
	h.start()
	p := h.run(h.registerTwo("both", whole), "check/drive", "100")
	launches := func() map[string]uint64 {
		n := map[string]uint64{}
		for _, g := range h.status().GPUs {
			for _, c := range g.Clients {
				n[g.GPU] += c.Launches
			}
		}
		return n
	}
	for range 5 {
		p.order(0, 0, 4, 10)
		p.order(0, 1, 4, 20)
	}
	h.eventually("one thread works on both", func() bool { n := launches(); return n["sim"] == 50 && n["sim:1"] == 100 })
	p.order(1, 0, 4, 50)
	p.order(2, 1, 4, 100)
	h.eventually("two threads work on one each", func() bool { n := launches(); return n["sim"] == 100 && n["sim:1"] == 200 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestDevicesApart closes one device's gate: it holds back what goes there and
// nothing else. The process connects for a device when it first works there.
func TestDevicesApart(t *testing.T) {
	f := newFake(t)
	f.listen()
	p := f.run(f.env(3), "check/drive", "100")
	p.order(0, 1, 1, 10)
	one := f.member(1)
	one.give()
	f.eventually("it works on device 1", func() bool { return p.launches(0, 1) == 10 })
	if f.find(0) != nil || f.find(2) != nil {
		t.Error("it has a connection for a device that it does not use")
	}
	p.order(0, 0, 1, 10) // waits
	zero := f.member(0)
	zero.asked()
	p.order(0, 1, 1, 5) // waits behind that
	p.order(1, 1, 1, 100)
	f.eventually("another thread works on device 1", func() bool { return p.launches(1, 1) == 100 })
	// A closed gate of device 1 is drained though a thread waits at that of device 0.
	one.generous.Store(false)
	f.eventually("it is idle", func() bool { return atomic.LoadUint32(&one.slot().Gate) == 0 })
	p.order(1, 1, 1, 2000)
	one.asked()
	lease := one.open()
	f.eventually("it goes on", func() bool {
		if one.requests.Load() > 0 { // it had no processor for so long that it gave the lease back
			lease = one.open()
		}
		return p.launches(1, 1) > 200
	})
	one.close(lease)
	one.returned(lease)
	one.give()
	if n := p.launches(0, 0); n != 0 {
		t.Errorf("%d launches went through a closed gate", n)
	}
	zero.give()
	f.eventually("it works on device 0, then on 1", func() bool { return p.launches(0, 0) == 10 && p.launches(0, 1) == 15 })
	p.order(2, 2, 0, 1) // memory and a copy
	f.member(2).give()
	f.eventually("it copies to device 2", func() bool { return p.launches(2, 2) == 1 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestDeviceRefused refuses a process one of its devices: it stays gated there,
// says so once, and goes on elsewhere.
func TestDeviceRefused(t *testing.T) {
	f := newFake(t)
	f.page = func(m *member) bool {
		if m.hello.Device > 0 {
			m.send(wire.Refused{Reason: wire.MakeReason("there is no such device")}, nil)
		}
		return m.hello.Device > 0
	}
	f.listen()
	p := f.run(f.env(2), "check/drive", "100")
	p.order(0, 1, 1, 1)
	p.order(1, 1, 0, 1)
	f.eventually("it says so", func() bool { return strings.Contains(p.errout.String(), "no such device") })
	p.order(2, 0, 1, 20)
	f.member(0).give()
	f.eventually("it works on device 0", func() bool { return p.launches(2, 0) == 20 })
	if p.launches(0, 1)+p.launches(1, 1) > 0 {
		t.Error("it worked on a device that it was refused")
	}
	if said := p.errout.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "device 1") {
		t.Errorf("it said, not in one line:\n%s", said)
	}
}

// TestExit ends a process while its threads launch on one device, wait at the
// gate of another and wait for a third's first page: it ends as it would alone.
func TestExit(t *testing.T) {
	f := newFake(t)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	f.page = func(m *member) bool {
		if m.hello.Device == 2 {
			<-never
		}
		return m.hello.Device == 2
	}
	f.listen()
	p := f.run(f.env(3), "check/ends", "exit")
	f.member(0).give()
	f.member(1).asked()
	fmt.Fprintln(p.in)
	f.eventually("it ends", p.over)
	if err := p.wait(); err != nil || p.out.String() != "done\n" || p.errout.String() != "" {
		t.Errorf("%v: %s%s", err, p.out.String(), p.errout.String())
	}
}

// TestDevicesNarrowed has a process see fewer of its instance's GPUs than there
// are, in an order of its own, as programs do to their workers: it is a client
// of the GPUs that it works on.
func TestDevicesNarrowed(t *testing.T) {
	const none = 1 << 31
	for visible, places := range map[string][]uint32{"2": {2}, "1,0": {1, 0}, "unset": {0, 1, 2}, "3": {none}, "1, 3": {1, none}} {
		t.Run(visible, func(t *testing.T) {
			f := newFake(t)
			f.listen()
			env := slices.DeleteFunc(f.env(3), func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
			if visible != "unset" {
				env = append(env, "CUDA_VISIBLE_DEVICES="+visible)
			}
			p := f.run(append(env, "GFAAS_SIM_GPU=count=4"), "check/drive", "10")
			for device, place := range places {
				p.order(device, device, 1, 1)
				if place == none {
					f.eventually("it says so", func() bool { return strings.Contains(p.errout.String(), "none of the GPUs") })
					continue
				}
				f.member(place).give()
				f.eventually("it works", func() bool { return p.launches(device, device) == 1 })
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.members) != len(places)-strings.Count(visible, "3") {
				t.Errorf("%d connections for %v", len(f.members), places)
			}
		})
	}
}

// TestDevicesTogether has two threads be the first that come: the one that finds
// the other still reading which GPUs there are works on the right one too.
func TestDevicesTogether(t *testing.T) {
	f := newFake(t)
	f.listen()
	env := slices.DeleteFunc(f.env(2), func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
	p := f.run(append(env, "CUDA_VISIBLE_DEVICES=1"), "check/together")
	var m *member
	f.eventually("it says hello", func() bool {
		for place := range uint32(2) {
			if m = f.find(place); m != nil {
				return true
			}
		}
		return false
	})
	if m.hello.Device != 1 {
		t.Fatalf("it works on device %d, not 1", m.hello.Device)
	}
	m.give()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}
