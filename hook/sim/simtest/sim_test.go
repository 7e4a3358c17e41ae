package simtest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const small = "sms=8,mem=64MiB,count=1"

// The programs say for themselves what was not as the driver documents it.
func TestConformance(t *testing.T) {
	for _, program := range []string{"device", "memory", "module", "library", "stream", "word", "lookup", "fork", "ipc", "threads",
		"graph", "graph_update", "graph_threads", "graph_memory",
		"capture", "pool", "managed", "vmm", "access", "array", "ipc_event"} {
		for _, shape := range []string{"", "sms=3,mem=256MiB,count=2", "mem=256MiB,poison=1"} {
			t.Run(program+" "+shape, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, shape)
				cmd := h.command("", "sim_"+program)
				if shape == "" {
					cmd.Env = without(cmd.Env, "GFAAS_SIM_GPU")
				}
				if out, err := run(cmd); err != nil {
					t.Errorf("%v\n%s", err, failures(out))
				}
				if names := h.left(); len(names) != 0 {
					t.Errorf("left behind: %v", names)
				}
			})
		}
	}
}

// TestCrashingChecks: checks that crash fail, and those after them are made all
// the same; so are the parts after one that cannot go on, or that hangs. What
// only the simulator promises fails on it, and on another driver is told of.
func TestCrashingChecks(t *testing.T) {
	failing := []string{"ok 1", "not ok 2", "ok 3", "not ok 4", "ok 5", "not ok 6", "not ok 7"}
	for _, c := range []struct {
		dir     string
		want    []string
		differs int
	}{
		{"", append(slices.Clone(failing), "not ok 8", "not ok 9", "not ok 10"), 0},
		{posing(t), append(slices.Clone(failing), "ok 8", "ok 9", "ok 10"), 3},
	} {
		cmd := newHost(t, "").command("", "tap_crash")
		cmd.Env = append(cmd.Env, "TAP_PATIENCE=1")
		if c.dir != "" {
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+c.dir)
		}
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%v, want exit 1", err)
		}
		text := string(out)
		last := text[strings.LastIndex(text, "# again")+1:]
		var checks []string
		for line := range strings.SplitSeq(last, "\n") {
			if ok, _, found := strings.Cut(line, " - "); found {
				checks = append(checks, ok)
			}
		}
		if !slices.Equal(checks, c.want) || strings.Count(text, "# again") != 5 || strings.Count(last, "# differs") != c.differs {
			t.Errorf("%q, want %q:\n%s", checks, c.want, text)
		}
		for _, why := range []string{"# it crashes", "refuses(): error 1 (CUDA_ERROR_INVALID_VALUE) of cuInit(1)", "hangs(): it hangs in a loop without end"} {
			if !strings.Contains(last, why) {
				t.Errorf("%q is missing:\n%s", why, last)
			}
		}
	}
}

// TestConformanceElsewhere: the programs go the way that they take on a driver
// that is not the simulated one.
func TestConformanceElsewhere(t *testing.T) {
	dir := posing(t)
	programs, _ := filepath.Glob(filepath.Join(build(t), "check/sim_*"))
	if len(programs) < 20 {
		t.Errorf("%d programs", len(programs))
	}
	for _, program := range programs {
		t.Run(filepath.Base(program), func(t *testing.T) {
			t.Parallel()
			cmd := newHost(t, "").command("", filepath.Base(program))
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir)
			if out, err := run(cmd); err != nil || strings.Contains(out, "# differs") {
				t.Errorf("%v\n%s", err, failures(out))
			}
		})
	}
}

// posing is a folder with the simulated driver under another GPU's name.
func posing(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(build(t), "lib/sim/libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	const name, other = "gfaas simulated GPU", "stand-in of another"
	if bytes.Count(text, []byte(name)) != 1 || len(name) != len(other) {
		t.Fatal("it has no such name")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), bytes.Replace(text, []byte(name), []byte(other), 1), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The arithmetic of sharing against the same in small steps.
func TestTurns(t *testing.T) {
	h := newHost(t, small)
	if out, err := run(h.command("", "turns")); err != nil {
		t.Errorf("%v\n%s", err, failures(out))
	}
}

func without(env []string, key string) []string {
	var kept []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, key+"=") {
			kept = append(kept, kv)
		}
	}
	return kept
}

// failures are the lines of a report that are not about success.
func failures(report string) string {
	var lines []string
	for _, l := range strings.Split(report, "\n") {
		if !strings.HasPrefix(l, "ok ") {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "\n")
}

func TestMalformedShape(t *testing.T) {
	for _, shape := range []string{"sms=0", "sms=x", "mem=16", "mem=16GB", "memory=1GiB", "sms=8,,", "count=999", "8", "context=x", "context=1GB", "poison=2", "poison="} {
		h := newHost(t, shape)
		cmd := h.command("", "several", "hold", "1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if _, err := run(cmd); err == nil {
			t.Errorf("%q was accepted", shape)
		}
		if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "GFAAS_SIM_GPU") {
			t.Errorf("%q: standard error %q", shape, got)
		}
	}
}

// A program that is not started by gfaas is told once that no GPU is here.
func TestSaysThatItSimulates(t *testing.T) {
	for _, c := range []struct {
		env  string
		want int
	}{{"GFAAS_SIM_NOTED=", 1}, {"GFAAS_SIM_NOTED=1", 0}, {"GFAAS_INSTANCE=a-0", 0}} {
		h := newHost(t, small)
		cmd := h.command("", "exits")
		cmd.Env = append(without(cmd.Env, "GFAAS_SIM_NOTED"), c.env)
		var said bytes.Buffer
		cmd.Stderr = &said
		if _, err := run(cmd); err != nil {
			t.Error(err)
		}
		if got := said.String(); strings.Count(got, "simulated GPU; its figures are not a GPU's\n") != c.want || strings.Count(got, "\n") != c.want {
			t.Errorf("%s: it says %q", c.env, got)
		}
	}
}

func TestVisibleDevices(t *testing.T) {
	const uuid = "GPU-67666161-732d-7369-6d75-6c61746564"
	for _, tc := range []struct {
		count   int
		visible string
		want    []int
	}{
		{2, "0", []int{0}}, {2, "1,0", []int{1, 0}}, {2, "0,1", []int{0, 1}},
		{2, "01", []int{1}}, {2, "001,00", []int{1, 0}}, {2, " 1 , 0 ", []int{1, 0}}, {2, "\t1", []int{1}}, {2, "1,", []int{1}},
		{2, uuid + "01", []int{1}}, {2, uuid + "01," + uuid + "00", []int{1, 0}}, {2, uuid + "01 , 0", []int{1, 0}},
		{1, "GPU-6766", []int{0}}, {1, "GPU-", []int{0}}, {3, "2,1", []int{2, 1}},
		// The list ends at the first entry that names no device.
		{4, "0,2,-1,1", []int{0, 2}}, {2, "1,2,0", []int{1}}, {2, "1,x,0", []int{1}}, {2, "1,,0", []int{1}},
		{2, "0,1x", []int{0}}, {2, "0,GPU-ffffffff,1", []int{0}}, {2, "1,MIG-" + uuid + "00/1/2,0", []int{1}}, {2, "1,4294967296", []int{1}},
		{2, "2", nil}, {2, "", nil}, {2, " ", nil}, {2, ",0", nil}, {2, "-1", nil}, {2, "NoDevFiles", nil}, {2, "x", nil},
		{2, "MIG-12345678-1234-1234-1234-123456789abc", nil}, {2, uuid + "02", nil}, {2, uuid + "010", nil}, {2, "6766", nil},
		// The beginning of several UUIDs names none; a device that comes twice leaves none.
		{2, "GPU-6766", nil}, {2, "1,GPU-6766", []int{1}}, {2, "0,0", nil}, {2, "0,1,00", nil}, {2, "1," + uuid + "01", nil},
	} {
		for _, order := range []string{"", "PCI_BUS_ID", "FASTEST_FIRST"} {
			h := newHost(t, fmt.Sprintf("count=%d,mem=64MiB", tc.count))
			cmd := h.command("", "visible")
			cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+tc.visible)
			if order != "" {
				cmd.Env = append(cmd.Env, "CUDA_DEVICE_ORDER="+order)
			}
			want := "cuInit 100\n"
			if tc.want != nil {
				want = "cuInit 0\n"
				for i, index := range tc.want {
					want += fmt.Sprintf("%d: GPU %d\n", i, index)
				}
				want += "beyond 101 101 101 101\n"
			}
			if got, err := run(cmd); err != nil || got != want {
				t.Errorf("CUDA_VISIBLE_DEVICES=%q of %d, CUDA_DEVICE_ORDER=%s: it prints %q, %v; want %q", tc.visible, tc.count, order, got, err, want)
			}
		}
	}
}

func within(t *testing.T, what string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.4f, expected %.4f", what, got, want)
	if got < want*0.97 || got > want*1.03 {
		t.Errorf("%s: %.4f, expected %.4f", what, got, want)
	}
}

// Processes side by side: what each batch of a process takes compared with the
// same process alone, all by the device's own clock.
func TestSharing(t *testing.T) {
	for _, tc := range []struct {
		name   string
		sms    int
		shares []string // SM percentages; "" takes turns
		slower []float64
	}{
		{"60 and 60 slow to 5/6", 100, []string{"60", "60"}, []float64{1.2, 1.2}},
		{"24, 24 and 50 do not meet", 100, []string{"24", "24", "50"}, []float64{1, 1, 1}},
		{"100, 60 and 40 halve", 100, []string{"100", "60", "40"}, []float64{2, 2, 2}},
		{"two take turns", 100, []string{"", ""}, []float64{2, 2}},
		{"three take turns", 100, []string{"", "", ""}, []float64{3, 3, 3}},
		{"MPS processes take turns as one", 100, []string{"", "30", "30"}, []float64{2, 2, 2}},
		{"and slow down in their turn", 100, []string{"", "100", "100"}, []float64{2, 4, 4}},
		// Shares are rounded up to whole SMs, of which there are no more for that.
		{"9 of 8 SMs", 8, []string{"30", "30", "30"}, []float64{1.125, 1.125, 1.125}},
		{"8 of 8 SMs", 8, []string{"24", "24", "50"}, []float64{1, 1, 1}},
		{"3 of 2 SMs", 2, []string{"1", "1", "1"}, []float64{1.5, 1.5, 1.5}},
		{"3 of 3 SMs", 3, []string{"33", "33", "33"}, []float64{1, 1, 1}},
		{"2 of 1 SM", 1, []string{"10", "90"}, []float64{2, 2}},
		{"9 of 8 SMs in their turn", 8, []string{"", "60", "40"}, []float64{2, 2.25, 2.25}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, fmt.Sprintf("sms=%d,mem=64MiB,count=1", tc.sms))
			first := h.start(tc.shares[0], "burn")
			alone := settles(t, "alone, in ms", 20, func() float64 { return first.mean(5) })
			all := []*process{first}
			for _, share := range tc.shares[1:] {
				p := h.start(share, "burn")
				p.mean(1)
				all = append(all, p)
			}
			for i, p := range all {
				settles(t, "process "+string(rune('a'+i)), tc.slower[i], func() float64 { return p.mean(8) / alone })
			}
			for _, p := range all[1:] {
				p.end()
			}
			settles(t, "alone again", 1, func() float64 { return first.mean(5) / alone })
			first.end()
			if names := h.left(); len(names) != 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}

// settles measures up to ten times: what is measured is simulated, and a host
// that stalls meanwhile can spoil it, not bring it about.
func settles(t *testing.T, what string, want float64, measure func() float64) float64 {
	t.Helper()
	got := measure()
	for range 9 {
		if math.Abs(got-want) <= 0.03*want {
			break
		}
		got = measure()
	}
	within(t, what, got, want)
	return got
}

// A process that launches graphs gets as much as one that launches kernels.
func TestSharingGraphs(t *testing.T) {
	for _, shares := range [][]string{{"", ""}, {"60", "60"}} {
		t.Run(fmt.Sprintf("%q", shares), func(t *testing.T) {
			h := newHost(t, "sms=100,mem=64MiB,count=1")
			slower := 2.0
			if shares[0] != "" {
				slower = 1.2
			}
			graphs := h.start(shares[0], "graphs")
			alone := settles(t, "alone, in ms", 20, func() float64 { return graphs.mean(5) })
			kernels := h.start(shares[1], "burn")
			kernels.mean(1)
			settles(t, "graphs", slower, func() float64 { return graphs.mean(8) / alone })
			settles(t, "kernels", slower, func() float64 { return kernels.mean(8) / alone })
			kernels.end()
			graphs.end()
			if names := h.left(); len(names) != 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
}

// A process that is killed in the middle of a kernel gives its memory and its
// place on the device to those who are left.
func TestKilledInMidKernel(t *testing.T) {
	h := newHost(t, small)
	alive := h.start("", "burn")
	alone := settles(t, "alone, in ms", 20, func() float64 { return alive.mean(5) })
	_, free := alive.batch()
	dead := h.start("", "long")
	dead.expect("long")
	settles(t, "beside it", 2, func() float64 { return alive.mean(8) / alone })
	if _, now := alive.batch(); now != free-1<<20 {
		t.Errorf("%d bytes free, expected 1 MiB less than %d", now, free)
	}
	dead.kill()
	settles(t, "after its death", 1, func() float64 { return alive.mean(8) / alone })
	if _, now := alive.batch(); now != free {
		t.Errorf("%d bytes free after its death, expected %d", now, free)
	}
	alive.end()
	if names := h.left(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// The memory limit is of the device, over all processes, the dead not counted.
func TestMemoryLimit(t *testing.T) {
	h := newHost(t, small)
	const mib = "1048576"
	a := h.start("", "hold", "41943040") // 40 MiB
	a.expect("held")
	b := h.start("50", "hold", "33554432") // 32 MiB
	b.expect("oom")
	b.end()
	c := h.start("", "hold", "25165824") // 24 MiB: exactly what is left
	c.expect("held")
	d := h.start("", "hold", mib)
	d.expect("oom")
	d.end()
	a.kill()
	e := h.start("", "hold", "41943040")
	e.expect("held")
	e.end()
	c.end()
	if names := h.left(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// What the last process left when it was killed, the next one clears.
func TestLeftoversOfTheDead(t *testing.T) {
	h := newHost(t, small)
	for range 3 {
		p := h.start("", "long")
		p.expect("long")
		p.kill()
	}
	if len(h.left()) == 0 {
		t.Fatal("nothing left by the dead: this test shows nothing")
	}
	p := h.start("", "hold", "67108864")
	p.expect("held")
	p.end()
	if names := h.left(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// A process without the address space for a device's memory keeps none of it, and
// has the device when there is room again.
func TestNoAddressSpace(t *testing.T) {
	h := newHost(t, small)
	if out, err := run(h.command("", "unmapped")); err != nil {
		t.Errorf("%v\n%s", err, failures(out))
	}
	if names := h.left(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Who looks through a process or dumps it does not come upon all of the device.
func TestSparseMemory(t *testing.T) {
	h := newHost(t, "count=1,mem=16GiB,context=0")
	if out, err := run(h.command("", "sparse")); err != nil {
		t.Errorf("%v\n%s", err, failures(out))
	}
}

// A process whose device's files another one cuts short has an error for it, and
// goes on; its own mistakes are its own.
func TestLostMemory(t *testing.T) {
	for _, what := range []string{"state", "memory", "grown", "own"} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t, small)
			cmd := h.command("", "lost", what)
			var said strings.Builder
			cmd.Stderr = &said
			if out, err := run(cmd); err != nil {
				t.Errorf("%v\n%s", err, failures(out))
			}
			if told := strings.Contains(said.String(), "memory of the simulated device is gone"); told != (what != "own") {
				t.Errorf("it said %q", said.String())
			}
		})
	}
}

// Processes that cannot see each other's pids, as in containers, share the
// device all the same, and one that dies is missed.
func TestOwnPidNamespaces(t *testing.T) {
	h := newHost(t, small)
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if uid := syscall.Getuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
	}
	probe := exec.Command("true")
	probe.SysProcAttr = attr
	if err := probe.Run(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("this machine gives no pid namespaces: %v", err)
		}
		t.Skipf("this machine gives no pid namespaces: %v", err)
	}
	inside := func(args ...string) *process {
		cmd := h.command("", "several", args...)
		cmd.SysProcAttr = attr
		return startCommand(t, cmd)
	}
	a := inside("burn")
	alone := settles(t, "alone, in ms", 20, func() float64 { return a.mean(5) })
	b := inside("burn")
	b.mean(1)
	settles(t, "beside another", 2, func() float64 { return a.mean(8) / alone })
	b.kill()
	settles(t, "after its death", 1, func() float64 { return a.mean(8) / alone })
	a.end()
	if names := h.left(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

// The directory of its own choice is removed with the last file, one that was
// given is not.
func TestGivenDirectoryStays(t *testing.T) {
	h := newHost(t, small)
	h.dir = filepath.Join(h.dir, "made")
	p := h.start("", "hold", "4096")
	p.expect("held")
	p.end()
	if names := h.left(); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}
