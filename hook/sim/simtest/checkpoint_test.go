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

// What the driver answers, as the program prints it.
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

// actor is a process that does what it is told, to itself or to others.
type actor struct{ *process }

// actor starts one that may do it to others.
func (h *host) actor(args ...string) actor {
	h.t.Helper()
	cmd := h.command("", "checkpoint", args...)
	cmd.SysProcAttr = capable(0)
	return actor{startCommand(h.t, cmd)}
}

// capable is how to start a process that may trace others, in new namespaces: where
// this one may not, as root of a user namespace of its own.
func capable(flags uintptr) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: flags}
	if uid := syscall.Getuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	}
	return attr
}

// target is an actor that is on device 0 and has a pattern in so much memory there.
func (h *host) target(bytes gpu.Bytes) actor {
	h.t.Helper()
	a := actor{startCommand(h.t, h.command("", "checkpoint"))}
	a.want(success, "use 0")
	a.want(success, "alloc %d", bytes)
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

func (a actor) want(want, format string, args ...any) {
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

// through takes a target from RUNNING to another state.
func (a actor) through(target actor, calls ...string) {
	a.t.Helper()
	for _, call := range calls {
		a.want(success, "%s %d 0", call, target.pid())
	}
}

// blocks waits until the actor's first thread sleeps in a call of the driver's, as it
// does in no other place, and sees that it has said nothing.
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
			a.t.Fatalf("it is in system call %s", text)
		}
	}
	if len(a.lines) != 0 {
		a.t.Fatalf("it says %q", <-a.lines)
	}
}

// empty sees that a device of so much memory has all of it, and that nobody leaves
// anything.
func (h *host) empty(size gpu.Bytes) {
	h.t.Helper()
	p := h.start("", "hold", fmt.Sprint(int64(size)))
	p.expect("held")
	p.end()
	if names := h.left(); len(names) != 0 {
		h.t.Errorf("left behind: %v", names)
	}
}

func TestLockBlocks(t *testing.T) {
	h := newHost(t, small)
	a, locker := h.target(gpu.MiB), h.actor()
	locker.want(running, "state %d", a.pid())
	locker.through(a, "lock")
	a.send("launch 0")
	a.blocks()
	locker.want(locked, "state %d", a.pid())
	locker.through(a, "unlock")
	a.expect(success)
	locker.want(running, "state %d", a.pid())
	a.want(success, "sync")
	a.want("right", "check")

	// A thread that has used CUDA ends all the same.
	a.want(success, "thread")
	locker.through(a, "lock")
	a.want(success, "join")
	locker.through(a, "unlock")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// A call that has begun is waited for, as long as one likes.
func TestLockWaits(t *testing.T) {
	h := newHost(t, small)
	a, locker := h.target(gpu.MiB), h.actor()
	a.want(success, "hold")
	a.send("sync")
	a.blocks()
	locker.want(notReady, "lock %d 1", a.pid())
	locker.want(running, "state %d", a.pid())
	locker.send("lock %d 0", a.pid())
	locker.blocks()
	locker.kill()

	// Who waited is dead; another one goes on.
	other := h.actor()
	other.want(locked, "state %d", a.pid())
	other.send("checkpoint %d", a.pid())
	other.blocks()
	other.kill()
	other = h.actor()
	other.want(locked, "state %d", a.pid())
	other.through(a, "unlock")
	a.signal(syscall.SIGUSR1)
	a.expect(success)
	other.through(a, "lock", "checkpoint", "restore", "unlock")
	a.want("right", "check")
	a.end()
	other.end()
	h.empty(64 * gpu.MiB)
}

// A checkpoint waits for work that was sent, callbacks included.
func TestCheckpointWaits(t *testing.T) {
	h := newHost(t, small)
	a, locker := h.target(gpu.MiB), h.actor()
	a.want(success, "launch 20")
	a.want(success, "hold")
	locker.through(a, "lock")
	locker.send("checkpoint %d", a.pid())
	locker.blocks()
	a.signal(syscall.SIGUSR1)
	locker.expect(success)
	locker.through(a, "restore", "unlock")
	a.want(success, "sync")
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// occupied is what the processes on a device have there: by the state file and by the
// simulated management library, which have to say the same.
func (h *host) occupied(by actor, index int) map[int]gpu.Bytes {
	h.t.Helper()
	used, err := simgpu.ProcessMemory(h.dir, index)
	if err != nil {
		h.t.Fatal(err)
	}
	told := map[int]gpu.Bytes{}
	for process := range strings.FieldsSeq(by.do("seen %d", index)) {
		var pid int
		var bytes gpu.Bytes
		if _, err := fmt.Sscanf(process, "%d:%d", &pid, &bytes); err != nil {
			h.t.Fatal(err)
		}
		told[pid] = bytes
	}
	if !maps.Equal(used, told) {
		h.t.Errorf("the library tells %v, the file %v", told, used)
	}
	return used
}

// What a checkpoint takes off the device others can have, and a restore brings it back
// where it was.
func TestCheckpointFrees(t *testing.T) {
	h := newHost(t, "sms=8,mem=64MiB,count=1,context=4MiB")
	a, b, locker := h.target(36*gpu.MiB), h.actor(), h.actor()
	a.want(success, "alloc %d", 5000)
	b.want(success, "use 0")
	b.want(oom, "alloc %d", 32*gpu.MiB)
	if got := h.occupied(locker, 0); got[a.pid()] != 40*gpu.MiB+8192 {
		t.Errorf("it has %v", got)
	}
	locker.through(a, "lock", "checkpoint")
	locker.want(checkpointed, "state %d", a.pid())
	if got, there := h.occupied(locker, 0)[a.pid()]; there {
		t.Errorf("it has %v after the checkpoint", got)
	}
	a.send("check")
	a.blocks()
	b.want(fmt.Sprint(int64(60*gpu.MiB)), "info")
	b.want(success, "alloc %d", 60*gpu.MiB) // all of it
	b.want("right", "check")
	b.end()
	locker.through(a, "restore")
	if got := h.occupied(locker, 0); got[a.pid()] != 40*gpu.MiB+8192 {
		t.Errorf("it has %v after the restore", got)
	}
	locker.want(locked, "state %d", a.pid())
	a.blocks()
	locker.through(a, "unlock")
	a.expect("right")
	a.want(success, "launch 1")
	a.want(success, "sync")
	a.want(success, "alloc %d", 16*gpu.MiB)
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(60 * gpu.MiB)
}

// What moves takes the time of a link of 16 GB/s.
func TestCheckpointTakesTime(t *testing.T) {
	h := newHost(t, "mem=4GiB,context=3GiB")
	a, locker := h.target(gpu.MiB), h.actor()
	locker.through(a, "lock")
	const least = 3 << 30 / 16 * time.Nanosecond
	for _, call := range []string{"checkpoint", "restore"} {
		began := time.Now()
		locker.through(a, call)
		if took := time.Since(began); took < least {
			t.Errorf("%s took %v, expected %v", call, took, least)
		}
	}
	locker.through(a, "unlock")
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(gpu.GiB)
}

// A restore that finds no room is the last that there is of the process.
func TestRestoreWithoutRoom(t *testing.T) {
	h := newHost(t, small)
	a, b, locker := h.target(40*gpu.MiB), h.actor(), h.actor()
	locker.through(a, "lock", "checkpoint")
	b.want(success, "use 0")
	b.want(success, "alloc %d", 32*gpu.MiB)
	locker.want(oom, "restore %d", a.pid())
	locker.want(checkpointed, "state %d", a.pid())
	b.kill()
	for _, c := range []struct{ call, want string }{
		{"restore", system}, {"unlock", illegalState}, {"lock", illegalState}, {"checkpoint", illegalState}, {"restore", system},
	} {
		locker.want(c.want, "%s %d 0", c.call, a.pid())
	}
	c := h.start("", "hold", fmt.Sprint(int64(64*gpu.MiB)))
	c.expect("held")
	c.end()
	a.kill()
	locker.want(invalid, "state %d", a.pid())
	locker.end()
	h.empty(64 * gpu.MiB)
}

// The room that the dead took is no lack of room.
func TestRestoreAfterDeath(t *testing.T) {
	h := newHost(t, small)
	a, b, locker := h.target(40*gpu.MiB), h.actor(), h.actor()
	locker.through(a, "lock", "checkpoint")
	b.want(success, "use 0")
	b.want(success, "alloc %d", 32*gpu.MiB)
	b.kill()
	locker.through(a, "restore", "unlock")
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

func TestCheckpointWrongState(t *testing.T) {
	h := newHost(t, small)
	a, locker := h.target(gpu.MiB), h.actor()
	refused := func(state string, calls ...string) {
		t.Helper()
		for _, call := range calls {
			locker.want(illegalState, "%s %d 0", call, a.pid())
		}
		locker.want(state, "state %d", a.pid())
	}
	refused(running, "checkpoint", "restore", "unlock")
	locker.through(a, "lock")
	refused(locked, "lock", "restore")
	locker.through(a, "checkpoint")
	refused(checkpointed, "lock", "checkpoint", "unlock")
	locker.through(a, "restore", "checkpoint", "restore")
	refused(locked, "lock", "restore")
	locker.through(a, "unlock")
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

func TestCheckpointRefuses(t *testing.T) {
	h := newHost(t, small)
	a, locker, beginner := h.target(gpu.MiB), h.actor(), h.actor("early")
	calls := []string{"lock", "checkpoint", "restore", "unlock", "state"}
	for _, call := range calls {
		beginner.want(early, "%s %d 0", call, a.pid())
		locker.want(invalid, "%s %d 0", call, os.Getpid())
		locker.want(invalid, "%s %d 0", call, locker.pid()) // it is on no device
		locker.want(invalid, "%s %d 0", call, 1<<30)
		locker.want(invalid, "%s 0 0", call)
	}
	locker.want("1 1 1 1 1 801 1 1 1", "args %d", a.pid())
	locker.want(success, "drop")
	for _, call := range calls {
		locker.want(notPermitted, "%s %d 0", call, a.pid())
	}
	a.want("right", "check")
	for _, p := range []actor{a, locker, beginner} {
		p.end()
	}
	h.empty(64 * gpu.MiB)
}

// What others may have too, and managed memory, cannot be taken away; without it the
// rest can.
func TestCheckpointUnsupported(t *testing.T) {
	h := newHost(t, small)
	a, b, locker := h.target(gpu.MiB), h.target(gpu.MiB), h.actor()
	refused := func(who actor) {
		t.Helper()
		locker.through(who, "lock")
		locker.want(notSupported, "checkpoint %d", who.pid())
		locker.want(locked, "state %d", who.pid())
		locker.through(who, "unlock")
	}
	taken := func(who actor) {
		t.Helper()
		locker.through(who, "lock", "checkpoint", "restore", "unlock")
		who.want("right", "check")
	}
	for _, what := range []string{"managed", "pool"} {
		a.want(success, "%s", what)
		refused(a)
		a.want(success, "unshare")
		taken(a)
	}
	fd := a.do("export")
	refused(a)
	b.want(success, "import %d %s", a.pid(), fd)
	refused(b)
	b.want(success, "unshare")
	taken(b)
	refused(a)
	a.want(success, "unshare")
	taken(a)
	handle := a.do("ipc")
	refused(a)
	b.want(success, "open %s", handle)
	refused(b)
	b.want(success, "close")
	taken(b)
	a.want(success, "unshare")
	taken(a)
	for _, p := range []actor{a, b, locker} {
		p.end()
	}
	h.empty(64 * gpu.MiB)
}

// A process that ends or is killed leaves nothing, in whatever state it is, neither to
// who has its place after it; one whose calls wait ends as others do.
func TestEndsWhileLocked(t *testing.T) {
	for _, calls := range [][]string{{}, {"lock"}, {"lock", "checkpoint"}, {"lock", "checkpoint", "restore"}} {
		h := newHost(t, small)
		locker, bystander := h.actor(), h.target(gpu.MiB)
		for _, how := range []string{"ends", "ends with calls", "is killed", "is killed in a call"} {
			t.Run(fmt.Sprint(calls, " ", how), func(t *testing.T) {
				a := h.target(40 * gpu.MiB)
				if how == "ends with calls" {
					a.want(success, "burn")
				}
				locker.through(a, calls...)
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
				locker.want(invalid, "state %d", a.pid())
				next := h.target(62 * gpu.MiB)
				next.want(fmt.Sprint(int64(gpu.MiB)), "info")
				locker.through(next, "lock", "checkpoint", "restore", "unlock")
				next.want("right", "check")
				next.end()
			})
		}
		bystander.want("right", "check")
		bystander.end()
		locker.end()
		h.empty(64 * gpu.MiB)
	}
}

// recover brings a target that somebody may have left in any state back to RUNNING,
// and sees that it has on its devices what it had.
func (h *host) recover(locker, target actor, want ...gpu.Bytes) (from string) {
	h.t.Helper()
	from = locker.do("state %d", target.pid())
	switch from {
	case checkpointed:
		locker.through(target, "restore", "unlock")
	case locked:
		locker.through(target, "unlock")
	}
	locker.want(running, "state %d", target.pid())
	for index, want := range want {
		if got := h.occupied(locker, index)[target.pid()]; got != want {
			h.t.Fatalf("on device %d it has %v, expected %v", index, got, want)
		}
	}
	return from
}

// Whatever one who is killed leaves undone, somebody else can do: before each of the
// system calls that it makes.
func TestLockerKilledAnywhere(t *testing.T) {
	t.Parallel()
	h := newHost(t, "sms=8,mem=64MiB,count=2,context=1MiB")
	a, locker := h.target(2*gpu.MiB), h.actor()
	a.want(success, "use 1")
	a.want(success, "alloc %d", gpu.MiB)
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
		t.Errorf("only %v", seen)
	}
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(63 * gpu.MiB)
}

// The same at any moment, of a process that launches meanwhile.
func TestLockerKilled(t *testing.T) {
	h := newHost(t, "sms=8,mem=64MiB,count=2,context=1MiB")
	a, locker := h.target(24*gpu.MiB), h.actor()
	a.want(success, "use 1")
	a.want(success, "alloc %d", 8*gpu.MiB)
	a.want(success, "burn")
	const seed = 1
	moments := rand.New(rand.NewPCG(seed, seed))
	for range 20 {
		victim := h.actor()
		victim.want(running, "state %d", a.pid())
		victim.send("cycle %d", a.pid())
		time.Sleep(time.Duration(moments.IntN(60)) * time.Millisecond) // where it is then, chance decides
		victim.kill()
		h.recover(locker, a, 25*gpu.MiB+2*4096, 9*gpu.MiB)
	}
	if got := a.do("stop"); !strings.HasSuffix(got, " right") {
		t.Error(got)
	}
	a.want("right", "check")
	a.end()
	locker.end()
	h.empty(63 * gpu.MiB)
}

func TestCheckpointTwoDevices(t *testing.T) {
	h := newHost(t, "sms=8,mem=64MiB,count=2")
	a, b, locker := h.target(40*gpu.MiB), h.actor(), h.actor()
	a.want(success, "use 1")
	a.want(success, "alloc %d", 48*gpu.MiB)
	locker.through(a, "lock", "checkpoint")
	for i := range 2 {
		if got := h.occupied(locker, i); len(got) != 0 {
			t.Errorf("device %d has %v", i, got)
		}
		b.want(success, "use %d", i)
		b.want(success, "alloc %d", 64*gpu.MiB)
	}
	b.end()
	locker.through(a, "restore", "unlock")
	a.want("right", "check")

	// Room on one of them is not enough, and then the process is on neither.
	locker.through(a, "lock", "checkpoint")
	c := h.actor()
	c.want(success, "use 1")
	c.want(success, "alloc %d", 32*gpu.MiB)
	locker.want(oom, "restore %d", a.pid())
	locker.want(checkpointed, "state %d", a.pid())
	c.want(success, "use 0")
	c.want(success, "alloc %d", 64*gpu.MiB)
	c.end()
	locker.want(system, "restore %d", a.pid())
	a.kill()
	d := h.actor()
	d.want(success, "use 1")
	d.want(success, "alloc %d", 64*gpu.MiB)
	d.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// One who is on the device does it to another, and to itself.
func TestLockerOnDevice(t *testing.T) {
	h := newHost(t, small)
	a, locker := h.target(gpu.MiB), h.actor()
	locker.want(success, "use 0")
	locker.want(success, "alloc %d", 2*gpu.MiB)
	locker.through(a, "lock", "checkpoint")
	locker.want(success, "alloc %d", 62*gpu.MiB)
	locker.want(oom, "restore %d", a.pid())
	locker.want("right", "check")
	a.kill()
	locker.through(locker, "lock", "checkpoint", "restore")
	locker.send("launch 0")
	locker.blocks()
	other := h.actor()
	other.through(locker, "unlock")
	locker.expect(success)
	locker.want("right", "check")
	locker.end()
	other.end()
	h.empty(64 * gpu.MiB)
}

// A process in a container is found by its number outside.
func TestCheckpointInPidNamespace(t *testing.T) {
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
	a.want(success, "use 0")
	a.want(success, "alloc %d", gpu.MiB)
	locker.through(a, "lock", "checkpoint", "restore", "unlock")
	a.want("right", "check")
	a.want(invalid, "state %d", a.pid()) // which is not its number
	a.want(running, "state 1")
	a.end()
	locker.end()
	h.empty(64 * gpu.MiB)
}

// Threads that launch all the time are locked and let go many times, sometimes by two
// at once: no launch is lost, and none is let through.
func TestLockStress(t *testing.T) {
	h := newHost(t, small)
	a := h.target(gpu.MiB)
	a.want(success, "burn")
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
				t.Fatal(answer)
			}
		}
		if i%10 == 0 {
			lockers[0].through(a, "checkpoint", "restore")
		}
		lockers[i%2].through(a, "unlock")
	}
	if got[success] != 150 || got[illegalState] != 150 {
		t.Error(got)
	}
	if got := a.do("stop"); !strings.HasSuffix(got, " right") {
		t.Error(got)
	} else {
		t.Log(got)
	}
	a.want("right", "check")
	a.end()
	for _, l := range lockers {
		l.end()
	}
	h.empty(64 * gpu.MiB)
}
