package simtest

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// Result codes of the driver and states, as the program prints them.
const (
	success      = "0"
	invalid      = "1"
	oom          = "2"
	early        = "3"
	system       = "304"
	illegalState = "401"
	notReady     = "600"
	notPermitted = "800"
	notSupported = "801"

	running      = "state 0"
	locked       = "state 1"
	checkpointed = "state 2"
)

// actor is a process that executes commands on itself and on other processes.
type actor struct{ *process }

// actor starts an actor that may checkpoint other processes.
func (h *host) actor(args ...string) actor {
	h.t.Helper()
	cmd := h.command("", "checkpoint", args...)
	cmd.SysProcAttr = capable(0)
	return actor{startCommand(h.t, cmd)}
}

// capable returns the attributes of a process that may trace others, in new namespaces.
// If this process may not trace, the new one is root of its own user namespace.
func capable(flags uintptr) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: flags}
	if uid := syscall.Getuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	}
	return attr
}

// startPatternActor starts an actor that uses device 0 and has a pattern in the given amount of
// its memory.
func (h *host) startPatternActor(bytes gpu.Bytes) actor {
	h.t.Helper()
	a := actor{startCommand(h.t, h.command("", "checkpoint"))}
	a.expectReply(success, "use 0")
	a.expectReply(success, "alloc %d", bytes)
	return a
}

func (a actor) pid() int { return a.cmd.Process.Pid }

func (a actor) send(format string, args ...any) {
	a.t.Helper()
	if _, err := fmt.Fprintf(a.stdin.(io.Writer), format+"\n", args...); err != nil {
		a.t.Fatal(err)
	}
}

func (a actor) do(format string, args ...any) string {
	a.t.Helper()
	a.send(format, args...)
	return a.line()
}

func (a actor) expectReply(want, format string, args ...any) {
	a.t.Helper()
	if got := a.do(format, args...); got != want {
		a.t.Fatalf("%s: got %q, want %q", fmt.Sprintf(format, args...), got, want)
	}
}

func (a actor) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.t.Fatal(err)
	}
}

// callEach makes a sequence of checkpoint calls on a target, beginning in the state
// RUNNING.
func (a actor) callEach(target actor, calls ...string) {
	a.t.Helper()
	for _, call := range calls {
		a.expectReply(success, "%s %d 0", call, target.pid())
	}
}

// blocks waits until the actor's first thread sleeps in a call of the driver, the only
// place where it sleeps in this way, and checks that it has printed no answer.
func (a actor) blocks() {
	a.t.Helper()
	path := fmt.Sprintf("/proc/%d/syscall", a.pid())
	prefixes := []string{fmt.Sprint(syscall.SYS_FUTEX, " "), fmt.Sprint(syscall.SYS_CLOCK_NANOSLEEP, " ")}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(path)
		if err != nil {
			a.t.Fatal(err)
		}
		if strings.HasPrefix(string(text), prefixes[0]) || strings.HasPrefix(string(text), prefixes[1]) {
			break
		}
		if time.Now().After(end) {
			a.t.Fatalf("first thread of the actor after %v: got the system call %s, want a wait in the driver", patience, text)
		}
	}
	if len(a.lines) != 0 {
		a.t.Fatalf("answer of a blocked actor: got %q, want none", <-a.lines)
	}
}

// empty checks that all memory of a device of the given size is free, and that no file
// remains.
func (h *host) empty(size gpu.Bytes) {
	h.t.Helper()
	p := h.start("", "hold", fmt.Sprint(int64(size)))
	p.expect("held")
	p.end()
	if names := h.sharedFiles(); len(names) != 0 {
		h.t.Errorf("files of the device at the end: got %v, want none", names)
	}
}

func TestLockBlocks(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, locker := h.startPatternActor(gpu.MiB), h.actor()
	locker.expectReply(running, "state %d", a.pid())
	locker.callEach(a, "lock")
	a.send("launch 0")
	a.blocks()
	locker.expectReply(locked, "state %d", a.pid())
	locker.callEach(a, "unlock")
	a.expect(success)
	locker.expectReply(running, "state %d", a.pid())
	a.expectReply(success, "sync")
	a.expectReply("right", "check")

	// A thread that has used CUDA can end while the process is locked.
	a.expectReply(success, "thread")
	locker.callEach(a, "lock")
	a.expectReply(success, "join")
	locker.callEach(a, "unlock")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// TestLockWaits checks that a lock waits for a call that has begun, without a time
// limit.
func TestLockWaits(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, locker := h.startPatternActor(gpu.MiB), h.actor()
	a.expectReply(success, "hold")
	a.send("sync")
	a.blocks()
	locker.expectReply(notReady, "lock %d 1", a.pid())
	locker.expectReply(running, "state %d", a.pid())
	locker.send("lock %d 0", a.pid())
	locker.blocks()
	locker.kill()

	// The waiting process is dead, and another one continues.
	other := h.actor()
	other.expectReply(locked, "state %d", a.pid())
	other.send("checkpoint %d", a.pid())
	other.blocks()
	other.kill()
	other = h.actor()
	other.expectReply(locked, "state %d", a.pid())
	other.callEach(a, "unlock")
	a.signal(syscall.SIGUSR1)
	a.expect(success)
	other.callEach(a, "lock", "checkpoint", "restore", "unlock")
	a.expectReply("right", "check")
	a.end()
	other.end()
	h.empty(64 * gpu.MiB)
}

// TestCheckpointWaits checks that a checkpoint waits for work in flight, callbacks
// included.
func TestCheckpointWaits(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, locker := h.startPatternActor(gpu.MiB), h.actor()
	a.expectReply(success, "launch 20")
	a.expectReply(success, "hold")
	locker.callEach(a, "lock")
	locker.send("checkpoint %d", a.pid())
	locker.blocks()
	a.signal(syscall.SIGUSR1)
	locker.expect(success)
	locker.callEach(a, "restore", "unlock")
	a.expectReply(success, "sync")
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// occupied returns the memory of each process on a device. The state file and the
// simulated NVML must agree on it.
func (h *host) occupied(by actor, index int) map[int]gpu.Bytes {
	h.t.Helper()
	used, err := simgpu.ProcessMemory(h.dir, index)
	if err != nil {
		h.t.Fatal(err)
	}
	listed := map[int]gpu.Bytes{}
	for process := range strings.FieldsSeq(by.do("seen %d", index)) {
		var pid int
		var bytes gpu.Bytes
		if _, err := fmt.Sscanf(process, "%d:%d", &pid, &bytes); err != nil {
			h.t.Fatal(err)
		}
		listed[pid] = bytes
	}
	if !maps.Equal(used, listed) {
		h.t.Errorf("memory of the processes: got %v from NVML, want %v as in the state file", listed, used)
	}
	return used
}

// TestCheckpointFrees checks that other processes can use the memory that a checkpoint
// frees, and that a restore brings the contents back to the same addresses.
func TestCheckpointFrees(t *testing.T) {
	t.Parallel()
	h := newHost(t, "sms=8,mem=64MiB,count=1,context=4MiB")
	a, b, locker := h.startPatternActor(36*gpu.MiB), h.actor(), h.actor()
	a.expectReply(success, "alloc %d", 5000)
	b.expectReply(success, "use 0")
	b.expectReply(oom, "alloc %d", 32*gpu.MiB)
	if got := h.occupied(locker, 0); got[a.pid()] != 40*gpu.MiB+8192 {
		t.Errorf("memory of the process: got %v, want %v", got[a.pid()], 40*gpu.MiB+8192)
	}
	locker.callEach(a, "lock", "checkpoint")
	locker.expectReply(checkpointed, "state %d", a.pid())
	if got, listed := h.occupied(locker, 0)[a.pid()]; listed {
		t.Errorf("memory of the process after the checkpoint: got %v, want none", got)
	}
	a.send("check")
	a.blocks()
	b.expectReply(fmt.Sprint(int64(60*gpu.MiB)), "info")
	b.expectReply(success, "alloc %d", 60*gpu.MiB) // all of the memory
	b.expectReply("right", "check")
	b.end()
	locker.callEach(a, "restore")
	if got := h.occupied(locker, 0); got[a.pid()] != 40*gpu.MiB+8192 {
		t.Errorf("memory of the process after the restore: got %v, want %v", got[a.pid()], 40*gpu.MiB+8192)
	}
	locker.expectReply(locked, "state %d", a.pid())
	a.blocks()
	locker.callEach(a, "unlock")
	a.expect("right")
	a.expectReply(success, "launch 1")
	a.expectReply(success, "sync")
	a.expectReply(success, "alloc %d", 16*gpu.MiB)
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(60 * gpu.MiB)
}

// TestCheckpointTakesTime checks that moving memory takes as long as on a link of 16
// GB/s.
func TestCheckpointTakesTime(t *testing.T) {
	t.Parallel()
	h := newHost(t, "mem=4GiB,context=3GiB")
	a, locker := h.startPatternActor(gpu.MiB), h.actor()
	locker.callEach(a, "lock")
	const least = 3 << 30 / 16 * time.Nanosecond
	for _, call := range []string{"checkpoint", "restore"} {
		started := time.Now()
		locker.callEach(a, call)
		if elapsed := time.Since(started); elapsed < least {
			t.Errorf("%s: took %v, want at least %v", call, elapsed, least)
		}
	}
	locker.callEach(a, "unlock")
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(gpu.GiB)
}

// TestRestoreWithoutRoom checks that a process cannot be used any more after a restore
// that found too little memory.
func TestRestoreWithoutRoom(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, b, locker := h.startPatternActor(40*gpu.MiB), h.actor(), h.actor()
	locker.callEach(a, "lock", "checkpoint")
	b.expectReply(success, "use 0")
	b.expectReply(success, "alloc %d", 32*gpu.MiB)
	locker.expectReply(oom, "restore %d", a.pid())
	locker.expectReply(checkpointed, "state %d", a.pid())
	b.kill()
	for _, c := range []struct{ call, want string }{
		{"restore", system}, {"unlock", illegalState}, {"lock", illegalState}, {"checkpoint", illegalState}, {"restore", system},
	} {
		locker.expectReply(c.want, "%s %d 0", c.call, a.pid())
	}
	c := h.start("", "hold", fmt.Sprint(int64(64*gpu.MiB)))
	c.expect("held")
	c.end()
	a.kill()
	locker.expectReply(invalid, "state %d", a.pid())
	locker.end()
	h.empty(64 * gpu.MiB)
}

// TestRestoreAfterDeath checks that the memory of dead processes does not make a
// restore fail.
func TestRestoreAfterDeath(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, b, locker := h.startPatternActor(40*gpu.MiB), h.actor(), h.actor()
	locker.callEach(a, "lock", "checkpoint")
	b.expectReply(success, "use 0")
	b.expectReply(success, "alloc %d", 32*gpu.MiB)
	b.kill()
	locker.callEach(a, "restore", "unlock")
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

func TestCheckpointWrongState(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, locker := h.startPatternActor(gpu.MiB), h.actor()
	refused := func(state string, calls ...string) {
		t.Helper()
		for _, call := range calls {
			locker.expectReply(illegalState, "%s %d 0", call, a.pid())
		}
		locker.expectReply(state, "state %d", a.pid())
	}
	refused(running, "checkpoint", "restore", "unlock")
	locker.callEach(a, "lock")
	refused(locked, "lock", "restore")
	locker.callEach(a, "checkpoint")
	refused(checkpointed, "lock", "checkpoint", "unlock")
	locker.callEach(a, "restore", "checkpoint", "restore")
	refused(locked, "lock", "restore")
	locker.callEach(a, "unlock")
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

func TestCheckpointRefuses(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, locker, beginner := h.startPatternActor(gpu.MiB), h.actor(), h.actor("early")
	calls := []string{"lock", "checkpoint", "restore", "unlock", "state"}
	for _, call := range calls {
		beginner.expectReply(early, "%s %d 0", call, a.pid())
		locker.expectReply(invalid, "%s %d 0", call, os.Getpid())
		locker.expectReply(invalid, "%s %d 0", call, locker.pid()) // the locker is on no device
		locker.expectReply(invalid, "%s %d 0", call, 1<<30)
		locker.expectReply(invalid, "%s 0 0", call)
	}
	locker.expectReply("1 1 1 1 1 801 1 1 1", "args %d", a.pid())
	locker.expectReply(success, "drop")
	for _, call := range calls {
		locker.expectReply(notPermitted, "%s %d 0", call, a.pid())
	}
	a.expectReply("right", "check")
	for _, p := range []actor{a, locker, beginner} {
		p.end()
	}
	h.empty(64 * gpu.MiB)
}

// TestCheckpointUnsupported checks that shared and managed memory prevent a checkpoint,
// and that the process can be checkpointed without it.
func TestCheckpointUnsupported(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, b, locker := h.startPatternActor(gpu.MiB), h.startPatternActor(gpu.MiB), h.actor()
	refused := func(process actor) {
		t.Helper()
		locker.callEach(process, "lock")
		locker.expectReply(notSupported, "checkpoint %d", process.pid())
		locker.expectReply(locked, "state %d", process.pid())
		locker.callEach(process, "unlock")
	}
	taken := func(process actor) {
		t.Helper()
		locker.callEach(process, "lock", "checkpoint", "restore", "unlock")
		process.expectReply("right", "check")
	}
	for _, kind := range []string{"managed", "pool"} {
		a.expectReply(success, "%s", kind)
		refused(a)
		a.expectReply(success, "unshare")
		taken(a)
	}
	fd := a.do("export")
	refused(a)
	b.expectReply(success, "import %d %s", a.pid(), fd)
	refused(b)
	b.expectReply(success, "unshare")
	taken(b)
	refused(a)
	a.expectReply(success, "unshare")
	taken(a)
	handle := a.do("ipc")
	refused(a)
	b.expectReply(success, "open %s", handle)
	refused(b)
	b.expectReply(success, "close")
	taken(b)
	a.expectReply(success, "unshare")
	taken(a)
	for _, p := range []actor{a, b, locker} {
		p.end()
	}
	h.empty(64 * gpu.MiB)
}

// TestEndsWhileLocked checks that a process that ends or is killed in any state leaves
// nothing behind, neither on the device nor to the next process in its slot. A process
// with waiting calls can end normally.
func TestEndsWhileLocked(t *testing.T) {
	t.Parallel()
	for _, calls := range [][]string{{}, {"lock"}, {"lock", "checkpoint"}, {"lock", "checkpoint", "restore"}} {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			t.Parallel()
			endsWhileLocked(t, calls)
		})
	}
}

func endsWhileLocked(t *testing.T, calls []string) {
	h := newHost(t, small)
	locker, bystander := h.actor(), h.startPatternActor(gpu.MiB)
	for _, how := range []string{"ends", "ends with calls", "is killed", "is killed in a call"} {
		t.Run(how, func(t *testing.T) {
			a := h.startPatternActor(40 * gpu.MiB)
			if how == "ends with calls" {
				a.expectReply(success, "burn")
			}
			locker.callEach(a, calls...)
			switch {
			case how == "ends with calls" && len(calls) > 0:
				a.end()
			case how == "ends":
				a.end()
			case how == "is killed in a call" && len(calls) > 0:
				a.send("launch 0")
				a.blocks()
				fallthrough
			default:
				a.kill()
			}
			locker.expectReply(invalid, "state %d", a.pid())
			next := h.startPatternActor(62 * gpu.MiB)
			next.expectReply(fmt.Sprint(int64(gpu.MiB)), "info")
			locker.callEach(next, "lock", "checkpoint", "restore", "unlock")
			next.expectReply("right", "check")
			next.end()
		})
	}
	bystander.expectReply("right", "check")
	bystander.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// recover brings a target from any state back to RUNNING, and checks that it has the
// given memory on its devices. It returns the state in which the target was.
func (h *host) recover(locker, target actor, want ...gpu.Bytes) (from string) {
	h.t.Helper()
	from = locker.do("state %d", target.pid())
	switch from {
	case checkpointed:
		locker.callEach(target, "restore", "unlock")
	case locked:
		locker.callEach(target, "unlock")
	}
	locker.expectReply(running, "state %d", target.pid())
	for index, want := range want {
		if got := h.occupied(locker, index)[target.pid()]; got != want {
			h.t.Fatalf("memory of the process on device %d: got %v, want %v", index, got, want)
		}
	}
	return from
}

// TestLockerKilledAnywhere checks that another process can continue after a killed
// locker, before each of the system calls that the locker makes.
func TestLockerKilledAnywhere(t *testing.T) {
	t.Parallel()
	h := newHost(t, "sms=8,mem=64MiB,count=2,context=1MiB")
	a, locker := h.startPatternActor(2*gpu.MiB), h.actor()
	a.expectReply(success, "use 1")
	a.expectReply(success, "alloc %d", gpu.MiB)
	seen := map[string]int{}
	for n := 1; ; n++ {
		answer := locker.do("killed %d %d", a.pid(), n)
		seen[h.recover(locker, a, 3*gpu.MiB, 2*gpu.MiB)]++
		if answer == "done" {
			t.Logf("%d times: %v", n, seen)
			break
		}
	}
	if len(seen) != 3 || seen[checkpointed] < 10 {
		t.Errorf("states after the locker was killed: got %v, want three different ones, and %s at least 10 times", seen, checkpointed)
	}
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(63 * gpu.MiB)
}

// TestLockerKilled kills lockers at random moments, while the target launches.
func TestLockerKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t, "sms=8,mem=64MiB,count=2,context=1MiB")
	a, locker := h.startPatternActor(24*gpu.MiB), h.actor()
	a.expectReply(success, "use 1")
	a.expectReply(success, "alloc %d", 8*gpu.MiB)
	a.expectReply(success, "burn")
	const seed = 1
	moments := rand.New(rand.NewPCG(seed, seed))
	for range 20 {
		victim := h.actor()
		victim.expectReply(running, "state %d", a.pid())
		victim.send("cycle %d", a.pid())
		time.Sleep(time.Duration(moments.IntN(60)) * time.Millisecond) // a random point of the cycle
		victim.kill()
		h.recover(locker, a, 25*gpu.MiB+2*4096, 9*gpu.MiB)
	}
	if got := a.do("stop"); !strings.HasSuffix(got, " right") {
		t.Errorf("threads that launch: got the answer %q, want one that ends with \"right\"", got)
	}
	a.expectReply("right", "check")
	a.end()
	locker.end()
	h.empty(63 * gpu.MiB)
}

func TestCheckpointTwoDevices(t *testing.T) {
	t.Parallel()
	h := newHost(t, "sms=8,mem=64MiB,count=2")
	a, b, locker := h.startPatternActor(40*gpu.MiB), h.actor(), h.actor()
	a.expectReply(success, "use 1")
	a.expectReply(success, "alloc %d", 48*gpu.MiB)
	locker.callEach(a, "lock", "checkpoint")
	for i := range 2 {
		if got := h.occupied(locker, i); len(got) != 0 {
			t.Errorf("device %d has %v, want none", i, got)
		}
		b.expectReply(success, "use %d", i)
		b.expectReply(success, "alloc %d", 64*gpu.MiB)
	}
	b.end()
	locker.callEach(a, "restore", "unlock")
	a.expectReply("right", "check")

	// If only one device has room, the restore fails, and the process is on neither
	// device.
	locker.callEach(a, "lock", "checkpoint")
	c := h.actor()
	c.expectReply(success, "use 1")
	c.expectReply(success, "alloc %d", 32*gpu.MiB)
	locker.expectReply(oom, "restore %d", a.pid())
	locker.expectReply(checkpointed, "state %d", a.pid())
	c.expectReply(success, "use 0")
	c.expectReply(success, "alloc %d", 64*gpu.MiB)
	c.end()
	locker.expectReply(system, "restore %d", a.pid())
	a.kill()
	d := h.actor()
	d.expectReply(success, "use 1")
	d.expectReply(success, "alloc %d", 64*gpu.MiB)
	d.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// TestLockerOnDevice checkpoints a process, and itself, from a process that uses the
// device.
func TestLockerOnDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	a, locker := h.startPatternActor(gpu.MiB), h.actor()
	locker.expectReply(success, "use 0")
	locker.expectReply(success, "alloc %d", 2*gpu.MiB)
	locker.callEach(a, "lock", "checkpoint")
	locker.expectReply(success, "alloc %d", 62*gpu.MiB)
	locker.expectReply(oom, "restore %d", a.pid())
	locker.expectReply("right", "check")
	a.kill()
	locker.callEach(locker, "lock", "checkpoint", "restore")
	locker.send("launch 0")
	locker.blocks()
	other := h.actor()
	other.callEach(locker, "unlock")
	locker.expect(success)
	locker.expectReply("right", "check")
	locker.end()
	other.end()
	h.empty(64 * gpu.MiB)
}

// TestCheckpointInPidNamespace checkpoints a process in a container by its pid outside.
func TestCheckpointInPidNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, small)
	attr := capable(syscall.CLONE_NEWPID)
	probe := exec.Command("true")
	probe.SysProcAttr = attr
	if err := probe.Run(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("this machine gives no pid namespaces: %v", err)
		}
		t.Skipf("this machine gives no pid namespaces: %v", err)
	}
	cmd := h.command("", "checkpoint")
	cmd.SysProcAttr = attr
	a, locker := actor{startCommand(t, cmd)}, h.actor()
	a.expectReply(success, "use 0")
	a.expectReply(success, "alloc %d", gpu.MiB)
	locker.callEach(a, "lock", "checkpoint", "restore", "unlock")
	a.expectReply("right", "check")
	a.expectReply(invalid, "state %d", a.pid()) // the target does not have this pid
	a.expectReply(running, "state 1")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// TestLockStress repeatedly locks and unlocks a process whose threads launch all the
// time, sometimes from two lockers at once. No launch is lost, and none runs while the
// process is locked.
func TestLockStress(t *testing.T) {
	h := newHost(t, small)
	a := h.startPatternActor(gpu.MiB)
	a.expectReply(success, "burn")
	lockers := []actor{h.actor(), h.actor()}
	got := map[string]int{}
	for i := range 150 {
		for _, l := range lockers {
			l.send("lock %d %d", a.pid(), i%3*1000)
		}
		for _, l := range lockers {
			answer := l.line()
			got[answer]++
			if answer != success && answer != illegalState {
				t.Fatalf("lock: got %q, want %q or %q", answer, success, illegalState)
			}
		}
		if i%10 == 0 {
			lockers[0].callEach(a, "checkpoint", "restore")
		}
		lockers[i%2].callEach(a, "unlock")
	}
	if got[success] != 150 || got[illegalState] != 150 {
		t.Errorf("answers to 300 locks: got %v, want 150 each of %q and %q", got, success, illegalState)
	}
	if got := a.do("stop"); !strings.HasSuffix(got, " right") {
		t.Errorf("threads that launch: got the answer %q, want one that ends with \"right\"", got)
	} else {
		t.Log(got)
	}
	a.expectReply("right", "check")
	a.end()
	for _, l := range lockers {
		l.end()
	}
	h.empty(64 * gpu.MiB)
}
