package simgpu

import (
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// stateFile creates a gpu3.state as a driver with the given layout would. Slot 5 has the given memory; if checkpointed
// is not 0, a checkpoint has moved it to the host.
func stateFile(t *testing.T, layout uint32, mem uint64, checkpointed uint32) string {
	t.Helper()
	const procAt, procSize = 64, 24
	dir := t.TempDir()
	b := make([]byte, procAt+slots*procSize)
	for i, word := range []uint32{magic, layout, procAt, procSize} {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	binary.NativeEndian.PutUint64(b[procAt+5*procSize+8:], mem)
	binary.NativeEndian.PutUint32(b[procAt+5*procSize+16:], checkpointed)
	if err := os.WriteFile(filepath.Join(dir, "gpu3.state"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestMain also runs this program as the process that uses the device, and as the other user of asVictim.
func TestMain(m *testing.M) {
	if operation := os.Getenv("SIMGPU_TEST_DO"); operation != "" {
		if err := do(operation); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	path := os.Getenv("SIMGPU_TEST_HOLD")
	if path == "" {
		os.Exit(m.Run())
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: lockSlot + 5, Len: 1})
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString("held")
	io.Copy(io.Discard, os.Stdin)
}

// holdSlot starts a process that holds slot 5.
func holdSlot(t *testing.T, dir string) (pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SIMGPU_TEST_HOLD="+filepath.Join(dir, "gpu3.state"))
	if _, err := cmd.StdinPipe(); err != nil { // the process exits when the pipe is closed, at the latest with the test
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("held"))); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestProcessMemory(t *testing.T) {
	dir := stateFile(t, layout, 12345, 0)
	if got, err := ProcessMemory(dir, 3); err != nil || len(got) != 0 {
		t.Errorf("memory without a process: got %v, %v; want none", got, err)
	}
	pid := holdSlot(t, dir)
	got, err := ProcessMemory(dir, 3)
	if err != nil || len(got) != 1 || got[pid] != gpu.Bytes(12345) {
		t.Errorf("memory: got %v, %v; want 12345 of process %d", got, err, pid)
	}
	if got, err := ProcessMemory(dir, 0); err != nil || got == nil || len(got) != 0 {
		t.Errorf("memory of a device without a file: got %v, %v; want an empty map", got, err)
	}
}

// A checkpoint has moved the process's memory to the host.
func TestProcessMemoryCheckpointed(t *testing.T) {
	dir := stateFile(t, layout, 12345, 1)
	holdSlot(t, dir)
	if got, err := ProcessMemory(dir, 3); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; want none", got, err)
	}
}

func TestProcessMemoryOfAnotherVersion(t *testing.T) {
	dir := stateFile(t, layout+1, 1, 0)
	holdSlot(t, dir)
	if got, err := ProcessMemory(dir, 3); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("memory in a file of another version: got %v, %v; want an error about the version", got, err)
	}
}

// The process that holds the slot has no PID in this namespace.
func TestProcessMemoryWithoutPID(t *testing.T) {
	dir := stateFile(t, layout, 1, 0)
	f, err := os.OpenFile(filepath.Join(dir, "gpu3.state"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// For such a lock, the kernel reports the PID -1.
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: lockSlot + 5, Len: 1}); err != nil {
		t.Fatal(err)
	}
	if got, err := ProcessMemory(dir, 3); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; want none", got, err)
	}
}
