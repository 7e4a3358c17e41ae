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

// TestConformance runs the conformance programs, which report deviations from the
// driver's documentation.
func TestConformance(t *testing.T) {
	t.Parallel()
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
					t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
				}
				if names := h.sharedFiles(); len(names) != 0 {
					t.Errorf("files of the device at the end: got %v, want none", names)
				}
			})
		}
	}
}

// TestCrashingChecks checks that crashing checks fail, and that the checks after them
// are still made; likewise for parts after a part that cannot continue or hangs. A
// promise that only the simulator makes fails on the simulator, and is reported on
// another driver.
func TestCrashingChecks(t *testing.T) {
	t.Parallel()
	failing := []string{"ok 1", "not ok 2", "ok 3", "not ok 4", "ok 5", "not ok 6", "not ok 7"}
	for _, c := range []struct {
		dir     string
		want    []string
		differs int
	}{
		{"", append(slices.Clone(failing), "not ok 8", "not ok 9", "not ok 10"), 0},
		{renamedGPU(t), append(slices.Clone(failing), "ok 8", "ok 9", "ok 10"), 3},
	} {
		cmd := newHost(t, "").command("", "tap_crash")
		cmd.Env = append(cmd.Env, "TAP_PATIENCE=1")
		if c.dir != "" {
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+c.dir)
		}
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("program with failing checks: got %v, want exit status 1", err)
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
			t.Errorf("checks: got %q, want %q:\n%s", checks, c.want, text)
		}
		for _, reason := range []string{"# it crashes", "refuses(): error 1 (CUDA_ERROR_INVALID_VALUE) of cuInit(1)", "hangs(): it hangs in a loop without end"} {
			if !strings.Contains(last, reason) {
				t.Errorf("report: got no reason %q, want it, in\n%s", reason, last)
			}
		}
	}
}

// TestConformanceElsewhere runs the programs in the way that they take on a driver
// other than the simulated one.
func TestConformanceElsewhere(t *testing.T) {
	t.Parallel()
	dir := renamedGPU(t)
	programs, _ := filepath.Glob(filepath.Join(build(t), "check/sim_*"))
	if len(programs) < 20 {
		t.Errorf("%d programs, want at least 20", len(programs))
	}
	for _, program := range programs {
		t.Run(filepath.Base(program), func(t *testing.T) {
			t.Parallel()
			cmd := newHost(t, "").command("", filepath.Base(program))
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir)
			if out, err := run(cmd); err != nil || strings.Contains(out, "# differs") {
				t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
			}
		})
	}
}

// renamedGPU returns a folder with the simulated driver under another GPU's name.
func renamedGPU(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(build(t), "lib/sim/libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	const name, other = "gfaas simulated GPU", "stand-in of another"
	if bytes.Count(text, []byte(name)) != 1 || len(name) != len(other) {
		t.Fatalf("the driver does not contain the name %q once, want it to be replaced by %q", name, other)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), bytes.Replace(text, []byte(name), []byte(other), 1), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTurns compares the arithmetic of sharing with a simulation in small steps.
func TestTurns(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	if out, err := run(h.command("", "turns")); err != nil {
		t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
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

// failures returns the lines of a report that do not begin with "ok".
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
	t.Parallel()
	for _, shape := range []string{"sms=0", "sms=x", "mem=16", "mem=16GB", "memory=1GiB", "sms=8,,", "count=999", "8", "context=x", "context=1GB", "poison=2", "poison="} {
		h := newHost(t, shape)
		cmd := h.command("", "several", "hold", "1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if _, err := run(cmd); err == nil {
			t.Errorf("GFAAS_SIM_GPU=%s: got success, want an error", shape)
		}
		if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "GFAAS_SIM_GPU") {
			t.Errorf("GFAAS_SIM_GPU=%s: got the message %q, want one line that names the variable", shape, got)
		}
	}
}

// TestNoteAboutSimulation checks that a program outside gfaas gets one message that the GPU is
// simulated.
func TestNoteAboutSimulation(t *testing.T) {
	for _, c := range []struct {
		env  string
		want int
	}{{"GFAAS_SIM_NOTED=", 1}, {"GFAAS_SIM_NOTED=1", 0}, {"GFAAS_INSTANCE=a-0", 0}} {
		h := newHost(t, small)
		cmd := h.command("", "exits")
		cmd.Env = append(without(cmd.Env, "GFAAS_SIM_NOTED"), c.env)
		var output bytes.Buffer
		cmd.Stderr = &output
		if _, err := run(cmd); err != nil {
			t.Error(err)
		}
		if got := output.String(); strings.Count(got, "simulated GPU; its figures are not those of a real GPU\n") != c.want || strings.Count(got, "\n") != c.want {
			t.Errorf("%s: got the message %q, want %d lines that the GPU is simulated", c.env, got, c.want)
		}
	}
}

func TestVisibleDevices(t *testing.T) {
	t.Parallel()
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
		// A common prefix of several UUIDs names no device; a list with a repeated
		// device is empty.
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

func checkWithin3Percent(t *testing.T, description string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.4f, expected %.4f", description, got, want)
	if got < want*0.97 || got > want*1.03 {
		t.Errorf("%s: got %.4f, want %.4f", description, got, want)
	}
}

// TestSharing runs processes side by side and compares the time of each process's
// batches with its time alone, by the device's own clock.
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
		// Shares are rounded up to whole SMs, which does not add SMs to the device.
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
			alone := measureUntilClose(t, "alone, in ms", 20, func() float64 { return first.mean(5) })
			all := []*process{first}
			for _, share := range tc.shares[1:] {
				p := h.start(share, "burn")
				p.mean(1)
				all = append(all, p)
			}
			for i, p := range all {
				measureUntilClose(t, "process "+string(rune('a'+i)), tc.slower[i], func() float64 { return p.mean(8) / alone })
			}
			for _, p := range all[1:] {
				p.end()
			}
			measureUntilClose(t, "alone again", 1, func() float64 { return first.mean(5) / alone })
			first.end()
			if names := h.sharedFiles(); len(names) != 0 {
				t.Errorf("files of the device at the end: got %v, want none", names)
			}
		})
	}
}

// measureUntilClose repeats a measurement up to ten times. The measured effect is simulated, so a
// stalling host can disturb it but not cause it.
func measureUntilClose(t *testing.T, description string, want float64, measure func() float64) float64 {
	t.Helper()
	got := measure()
	for range 9 {
		if math.Abs(got-want) <= 0.03*want {
			break
		}
		got = measure()
	}
	checkWithin3Percent(t, description, got, want)
	return got
}

// TestSharingGraphs checks that a process that launches graphs gets the same share as a
// process that launches kernels.
func TestSharingGraphs(t *testing.T) {
	for _, shares := range [][]string{{"", ""}, {"60", "60"}} {
		t.Run(fmt.Sprintf("%q", shares), func(t *testing.T) {
			h := newHost(t, "sms=100,mem=64MiB,count=1")
			slower := 2.0
			if shares[0] != "" {
				slower = 1.2
			}
			graphs := h.start(shares[0], "graphs")
			alone := measureUntilClose(t, "alone, in ms", 20, func() float64 { return graphs.mean(5) })
			kernels := h.start(shares[1], "burn")
			kernels.mean(1)
			measureUntilClose(t, "graphs", slower, func() float64 { return graphs.mean(8) / alone })
			measureUntilClose(t, "kernels", slower, func() float64 { return kernels.mean(8) / alone })
			kernels.end()
			graphs.end()
			if names := h.sharedFiles(); len(names) != 0 {
				t.Errorf("files of the device at the end: got %v, want none", names)
			}
		})
	}
}

// TestKilledInMidKernel kills a process in the middle of a kernel. Its memory and its
// share of the device go to the others.
func TestKilledInMidKernel(t *testing.T) {
	h := newHost(t, small)
	alive := h.start("", "burn")
	alone := measureUntilClose(t, "alone, in ms", 20, func() float64 { return alive.mean(5) })
	_, free := alive.batch()
	dead := h.start("", "long")
	dead.expect("long")
	measureUntilClose(t, "beside it", 2, func() float64 { return alive.mean(8) / alone })
	if _, now := alive.batch(); now != free-1<<20 {
		t.Errorf("free memory beside the second process: got %d bytes, want %d", now, free-1<<20)
	}
	dead.kill()
	measureUntilClose(t, "after its death", 1, func() float64 { return alive.mean(8) / alone })
	if _, now := alive.batch(); now != free {
		t.Errorf("free memory after the second process was killed: got %d bytes, want %d", now, free)
	}
	alive.end()
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestMemoryLimit checks that the device's memory limits all living processes together.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	const mib = "1048576"
	a := h.start("", "hold", "41943040") // 40 MiB
	a.expect("held")
	b := h.start("50", "hold", "33554432") // 32 MiB
	b.expect("oom")
	b.end()
	c := h.start("", "hold", "25165824") // 24 MiB: exactly the remaining memory
	c.expect("held")
	d := h.start("", "hold", mib)
	d.expect("oom")
	d.end()
	a.kill()
	e := h.start("", "hold", "41943040")
	e.expect("held")
	e.end()
	c.end()
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestFilesOfKilledProcessesAreRemoved checks that the next process removes the files of a last
// process that was killed.
func TestFilesOfKilledProcessesAreRemoved(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	for range 3 {
		p := h.start("", "long")
		p.expect("long")
		p.kill()
	}
	if len(h.sharedFiles()) == 0 {
		t.Fatal("files of killed processes: got none, want some, or this test shows nothing")
	}
	p := h.start("", "hold", "67108864")
	p.expect("held")
	p.end()
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestNoAddressSpace checks that a process without the address space for a device's
// memory keeps none of it, and can use the device once there is room.
func TestNoAddressSpace(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	if out, err := run(h.command("", "unmapped")); err != nil {
		t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
	}
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestSparseMemory checks that unused device memory is invisible to programs that read
// all memory of a process, or dump it.
func TestSparseMemory(t *testing.T) {
	t.Parallel()
	h := newHost(t, "count=1,mem=16GiB,context=0")
	if out, err := run(h.command("", "sparse")); err != nil {
		t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
	}
}

// TestLostMemory checks that a process gets an error, and continues, if another process
// truncates its device's files. A SIGBUS of its own is not intercepted.
func TestLostMemory(t *testing.T) {
	t.Parallel()
	for _, loss := range []string{"state", "memory", "grown", "own"} {
		t.Run(loss, func(t *testing.T) {
			h := newHost(t, small)
			cmd := h.command("", "lost", loss)
			var output strings.Builder
			cmd.Stderr = &output
			if out, err := run(cmd); err != nil {
				t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
			}
			if reported := strings.Contains(output.String(), "memory of the simulated device is lost"); reported != (loss != "own") {
				t.Errorf("messages of the program: got %q, want that the device's memory is lost: %v", output.String(), loss != "own")
			}
		})
	}
}

// TestOwnPidNamespaces checks that processes that cannot see each other's pids, as in
// containers, share the device, and that the death of a process is noticed.
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
	alone := measureUntilClose(t, "alone, in ms", 20, func() float64 { return a.mean(5) })
	b := inside("burn")
	b.mean(1)
	measureUntilClose(t, "beside another", 2, func() float64 { return a.mean(8) / alone })
	b.kill()
	measureUntilClose(t, "after its death", 1, func() float64 { return a.mean(8) / alone })
	a.end()
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

// TestGivenFolderIsKept checks that the driver keeps a directory that it was given. It removes
// only a directory of its own choice, with the last file in it.
func TestGivenFolderIsKept(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	h.dir = filepath.Join(h.dir, "made")
	p := h.start("", "hold", "4096")
	p.expect("held")
	p.end()
	if names := h.sharedFiles(); len(names) != 0 {
		t.Errorf("files of the device at the end: got %v, want none", names)
	}
}
