package hooktest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// kernels describes launches of a thread of a drive program.
type kernels struct {
	thread int
	device int
	blocks int
	count  int
}

// order makes a drive program launch kernels.
func (p *program) order(k kernels) {
	fmt.Fprintln(p.in, k.thread, k.device, k.blocks, k.count)
}

// launches returns how many launches of a thread on a device have returned.
func (p *program) launches(thread, device int) int {
	return strings.Count(p.out.String(), fmt.Sprintf("%d %d\n", thread, device))
}

// TestDevices runs a process on the two GPUs of its instance, from one thread and from
// two. The process is a client of each GPU.
func TestDevices(t *testing.T) {
	t.Parallel()
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
		p.order(kernels{blocks: 4, count: 10})
		p.order(kernels{device: 1, blocks: 4, count: 20})
	}
	h.eventually("one thread has launched on both devices", func() bool { n := launches(); return n["sim"] == 50 && n["sim:1"] == 100 })
	p.order(kernels{thread: 1, blocks: 4, count: 50})
	p.order(kernels{thread: 2, device: 1, blocks: 4, count: 100})
	h.eventually("two threads have launched on a device each", func() bool { n := launches(); return n["sim"] == 100 && n["sim:1"] == 200 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestDevicesAreGatedSeparately closes one device's gate. Only the work for that device
// is held back. The process connects for a device when it first works there.
func TestDevicesAreGatedSeparately(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	p := f.run(f.env(3), "check/drive", "100")
	p.order(kernels{device: 1, blocks: 1, count: 10})
	one := f.member(1)
	one.alwaysGrant()
	f.eventually("the process has launched on device 1", func() bool { return p.launches(0, 1) == 10 })
	if f.find(0) != nil || f.find(2) != nil {
		t.Error("connections of the process: got one for a device without work, want only device 1")
	}
	p.order(kernels{blocks: 1, count: 10}) // waits
	zero := f.member(0)
	zero.awaitRequest()
	p.order(kernels{device: 1, blocks: 1, count: 5}) // waits behind the first order
	p.order(kernels{thread: 1, device: 1, blocks: 1, count: 100})
	f.eventually("another thread has launched on device 1", func() bool { return p.launches(1, 1) == 100 })
	// The closed gate of device 1 is drained although a thread waits at the gate of
	// device 0.
	one.grantAlways.Store(false)
	f.eventually("the process has returned its lease of device 1", func() bool { return atomic.LoadUint32(&one.slot().Gate) == 0 })
	p.order(kernels{thread: 1, device: 1, blocks: 1, count: 2000})
	one.awaitRequest()
	lease := one.open()
	f.eventually("the other thread continues on device 1", func() bool {
		if one.requests.Load() > 0 { // it had no processor, and returned the lease
			lease = one.open()
		}
		return p.launches(1, 1) > 200
	})
	one.close(lease)
	one.awaitReturn(lease)
	one.alwaysGrant()
	if n := p.launches(0, 0); n != 0 {
		t.Errorf("%d launches went through a closed gate, want 0", n)
	}
	zero.alwaysGrant()
	f.eventually("the thread has launched on device 0, then on 1", func() bool { return p.launches(0, 0) == 10 && p.launches(0, 1) == 15 })
	p.order(kernels{thread: 2, device: 2, count: 1}) // allocates and copies
	f.member(2).alwaysGrant()
	f.eventually("the process has copied to device 2", func() bool { return p.launches(2, 2) == 1 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestDeviceRefused refuses a process the use of a single device. The process stays
// gated there, prints one message, and continues on the other devices.
func TestDeviceRefused(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.page = func(m *member) bool {
		if m.hello.Device > 0 {
			m.send(wire.Refused{Reason: wire.MakeReason("there is no such device")}, nil)
		}
		return m.hello.Device > 0
	}
	f.listen()
	p := f.run(f.env(2), "check/drive", "100")
	p.order(kernels{device: 1, blocks: 1, count: 1})
	p.order(kernels{thread: 1, device: 1, count: 1})
	f.eventually("the program prints that device 1 is refused", func() bool { return strings.Contains(p.errout.String(), "no such device") })
	p.order(kernels{thread: 2, blocks: 1, count: 20})
	f.member(0).alwaysGrant()
	f.eventually("the process has launched on device 0", func() bool { return p.launches(2, 0) == 20 })
	if p.launches(0, 1)+p.launches(1, 1) > 0 {
		t.Errorf("launches on the refused device: got %d, want 0", p.launches(0, 1)+p.launches(1, 1))
	}
	if output := p.errout.String(); strings.Count(output, "\n") != 1 || !strings.Contains(output, "device 1") {
		t.Errorf("messages of the program: want one line about device 1, got\n%s", output)
	}
}

// TestExit ends a process while its threads launch on one device, wait at the gate of
// another, and wait for a third device's first page. The process ends as it would
// without the library.
func TestExit(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var waits atomic.Bool
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	f.page = func(m *member) bool {
		if m.hello.Device == 2 {
			waits.Store(true)
			<-never
		}
		return m.hello.Device == 2
	}
	f.listen()
	p := f.run(f.env(3), "check/ends", "exit")
	f.member(0).alwaysGrant()
	f.member(1).awaitRequest()
	f.eventually("the third thread allocates", waits.Load) // before the exit, which makes later allocations fail
	fmt.Fprintln(p.in)
	f.eventually("the program has ended", p.exited)
	if err := p.wait(); err != nil || p.out.String() != "done\n" || p.errout.String() != "" {
		t.Errorf("end of the program: got %v with the output %s%s, want success with \"done\"", err, p.out.String(), p.errout.String())
	}
}

// gpuUUID returns the UUID of a simulated GPU.
func gpuUUID(index int) string {
	return fmt.Sprintf("GPU-67666161-732d-7369-6d75-6c61746564%02x", index)
}

// TestDevicesNarrowed runs a process that sees only some of its instance's GPUs, in its
// own order and spelling, as programs arrange for their workers. The process is a
// client of the GPUs on which it works. A GPU outside the instance ends the list, like
// an entry that names no GPU, and no work waits for it. The list is in the initial
// environment, or the process sets it itself.
func TestDevicesNarrowed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		visible string // of four GPUs; "unset" removes the variable
		order   string // CUDA_DEVICE_ORDER
		given   string // GFAAS_DEVICES
		places  []int  // positions among the instance's GPUs, by device; nil: cuInit fails
		gpus    []int  // by device
		output  string // "": no message
	}{
		{"2", "PCI_BUS_ID", "0,1,2", []int{2}, []int{2}, ""},
		{"1,0", "PCI_BUS_ID", "0,1,2", []int{1, 0}, []int{1, 0}, ""},
		{"0,1,2", "PCI_BUS_ID", "0,1,2", []int{0, 1, 2}, []int{0, 1, 2}, ""},
		{"0,1,2", "FASTEST_FIRST", "0,1,2", []int{0, 1, 2}, []int{0, 1, 2}, ""},
		{"0,1", "FASTEST_FIRST", "1,0", []int{1, 0}, []int{0, 1}, ""},
		{"unset", "PCI_BUS_ID", "0,1,2", []int{0, 1, 2}, []int{0, 1, 2}, ""},
		{"unset", "unset", "3,1", []int{0, 1}, []int{3, 1}, ""},
		{"02", "PCI_BUS_ID", "0,1,2", []int{2}, []int{2}, ""},
		{" 2 , 00", "PCI_BUS_ID", "0,1,2", []int{2, 0}, []int{2, 0}, ""},
		{"00", "unset", "0", []int{0}, []int{0}, ""},
		{gpuUUID(0), "PCI_BUS_ID", "0", []int{0}, []int{0}, ""},
		{gpuUUID(2), "PCI_BUS_ID", "0,2", []int{1}, []int{2}, ""},
		{gpuUUID(2) + "," + gpuUUID(0), "unset", "0,1,2", []int{2, 0}, []int{2, 0}, ""},
		{gpuUUID(2) + ",1", "FASTEST_FIRST", "0,1,2", []int{2, 1}, []int{2, 1}, ""},
		// Instances whose GPUs are given by UUID, or as numbers with leading zeros.
		{gpuUUID(2), "PCI_BUS_ID", gpuUUID(2), []int{0}, []int{2}, ""},
		{"2,1", "PCI_BUS_ID", gpuUUID(1) + "," + gpuUUID(2), []int{1, 0}, []int{2, 1}, ""},
		{"1", "PCI_BUS_ID", "02,01", []int{1}, []int{1}, ""},
		// A GPU outside the slice.
		{"1, 3", "PCI_BUS_ID", "0,1,2", []int{1}, []int{1}, "device 1 of CUDA_VISIBLE_DEVICES=1, 3 is not one of this instance's GPUs (0,1,2)"},
		{"1,3,0", "PCI_BUS_ID", "0,1,2", []int{1}, []int{1}, "device 1 of"},
		{"0,1,2,3", "PCI_BUS_ID", "0,1,2", []int{0, 1, 2}, []int{0, 1, 2}, "device 3 of"},
		{gpuUUID(1) + "," + gpuUUID(3), "PCI_BUS_ID", "1", []int{0}, []int{1}, "device 1 of"},
		{"3", "PCI_BUS_ID", "0,1,2", nil, nil, "CUDA_VISIBLE_DEVICES=3 contains none of this instance's GPUs (0,1,2)"},
		{"3,1", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{gpuUUID(3), "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{gpuUUID(3), "PCI_BUS_ID", gpuUUID(1), nil, nil, "none of this instance's GPUs"},
		// Lists in which the driver finds no GPU.
		{"7", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{"", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{"-1", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{"NoDevFiles", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{"1,1", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{"GPU-", "PCI_BUS_ID", "0,1,2", nil, nil, "none of this instance's GPUs"},
		{"1,x,0", "PCI_BUS_ID", "0,1,2", []int{1}, []int{1}, ""},
	} {
		t.Run(tc.visible+" of "+tc.given, func(t *testing.T) {
			for _, itself := range []bool{false, true} {
				set := map[string]string{"CUDA_VISIBLE_DEVICES": tc.visible, "CUDA_DEVICE_ORDER": tc.order}
				f := newFake(t)
				f.listen()
				env := slices.DeleteFunc(f.env(1), func(v string) bool {
					name, _, _ := strings.Cut(v, "=")
					_, ours := set[name]
					return ours || name == "GFAAS_DEVICES"
				})
				env = append(env, "GFAAS_SIM_GPU=count=4,mem=64MiB", "GFAAS_DEVICES="+tc.given)
				var args []string
				if itself {
					env = append(env, "CUDA_VISIBLE_DEVICES="+tc.given, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
				}
				for name, value := range set {
					switch {
					case value != "unset" && itself:
						args = append(args, name+"="+value)
					case value != "unset":
						env = append(env, name+"="+value)
					case itself:
						args = append(args, name)
					}
				}
				p := f.run(env, "check/visible", args...)
				for _, place := range tc.places {
					f.member(uint32(place)).alwaysGrant()
				}
				f.eventually("the program has ended", p.exited)
				want := "cuInit 100\n"
				if tc.places != nil {
					want = "cuInit 0\n"
					for device, index := range tc.gpus {
						want += fmt.Sprintf("%d: GPU %d\n", device, index)
					}
					want += "beyond 101 101 101 "
				}
				if got := p.out.String(); !strings.HasPrefix(got, want) {
					t.Errorf("output of the program: got %q, want %q first", got, want)
				}
				if err := p.wait(); err != nil {
					t.Error(err)
				}
				output := p.errout.String()
				if lines := strings.Count(output, "\n"); tc.output == "" && lines > 0 || tc.output != "" && lines != 1 || !strings.Contains(output, tc.output) {
					t.Errorf("messages of the program: got %q, want one line with %q", output, tc.output)
				}
				var places []int
				f.mu.Lock()
				for _, m := range f.members {
					places = append(places, int(m.hello.Device))
				}
				f.mu.Unlock()
				if !slices.Equal(places, tc.places) {
					t.Errorf("places of the process's connections: got %v, want %v", places, tc.places)
				}
			}
		})
	}
}

// TestDevicesOne names the only GPU of a machine by a prefix of its UUID.
func TestDevicesOne(t *testing.T) {
	t.Parallel()
	for _, visible := range []string{"GPU-6", "GPU-67666161-732d", "00"} {
		f := newFake(t)
		f.listen()
		env := slices.DeleteFunc(f.env(1), func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
		p := f.run(append(env, "CUDA_VISIBLE_DEVICES="+visible), "check/visible")
		f.member(0).alwaysGrant()
		if err := p.wait(); err != nil || p.out.String() != "cuInit 0\n0: GPU 0\nbeyond 101 101 101 101\n" || p.errout.String() != "" {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: got %v with the output %s%s, want only GPU 0, and error 101 beyond it", visible, err, p.out.String(), p.errout.String())
		}
	}
}

// TestDevicesTogether lets two threads initialise the library at the same time. The
// thread that arrives while the other still reads the list of GPUs also works on the
// right GPU.
func TestDevicesTogether(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	env := slices.DeleteFunc(f.env(2), func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
	p := f.run(append(env, "CUDA_VISIBLE_DEVICES=1"), "check/together")
	var m *member
	f.eventually("the process is connected", func() bool {
		for place := range uint32(2) {
			if m = f.find(place); m != nil {
				return true
			}
		}
		return false
	})
	if m.hello.Device != 1 {
		t.Fatalf("device of the connection: got %d, want 1", m.hello.Device)
	}
	m.alwaysGrant()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}
