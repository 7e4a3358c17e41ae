package gfaas

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk runs the commands that write the state on a disk that becomes full while they run. It repeats each with
// 0, 1, 2, … free pages until the command succeeds, so that every write of the command fails once. The command must
// succeed or report the lack of space, the state must match the running instances, and everything must recover when
// there is space again.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the same commands many times")
	}
	t.Parallel()
	const (
		page   = 4096
		plenty = 1000 // pages, more than all commands need
	)
	disk := t.TempDir()
	size := func(pages int) string { return fmt.Sprintf("size=%d,mode=700", pages*page) }
	if err := unix.Mount("gfaas-test", disk, "tmpfs", 0, size(1)); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			t.Skip("SKIPPED: only root can mount a small file system")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	resize := func(pages int) {
		t.Helper()
		if err := unix.Mount("gfaas-test", disk, "tmpfs", unix.MS_REMOUNT, size(pages)); err != nil {
			t.Fatal(err)
		}
	}
	used := func() int {
		t.Helper()
		var s unix.Statfs_t
		if err := unix.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		return int(s.Blocks - s.Bfree)
	}

	programs, dir := build(t), t.TempDir()
	env := append(os.Environ(), append(programs.environ(dir), "GFAAS_STATE="+filepath.Join(disk, "state.db"))...)
	t.Cleanup(func() { resize(plenty); down(env) })
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	functions := write("f.yaml", fmt.Sprintf("name: f\ncommand: [%q]\nenv: {LONG: %q}\n", programs.function, strings.Repeat("x", 2*page)))
	plan := write("plan.json", `{"version":1,"algorithm":"fast","model":"rect","gpus_used":1,"bound":1,"bound_method":"area",
 "gpus":[{"node":"node0","index":0,"mem_mib":0,"instances":[
  {"id":"f-0","function":"f","sm_pct":10,"quota_request":0.1,"quota_limit":0.1,"batch":1,"rps":1,"mem_mib":0,"x":0,"y":0}]}],
 "demand":[{"function":"f","rps":1,"served_rps":1}],"unplaced":[]}`)
	gfaas := func(args ...string) (out, stderr string, status int) {
		t.Helper()
		var outBuf, errBuf bytes.Buffer
		cmd := exec.Command("gfaas", args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = env, &outBuf, &errBuf
		err := cmd.Run()
		var exited *exec.ExitError
		if err != nil && !errors.As(err, &exited) {
			t.Fatal(err)
		}
		return outBuf.String(), errBuf.String(), cmd.ProcessState.ExitCode()
	}

	must := func(args ...string) {
		t.Helper()
		if _, stderr, status := gfaas(args...); status != 0 {
			t.Fatalf("gfaas %s with free space: got exit status %d, want 0: %s", args[0], status, stderr)
		}
	}

	outOfSpace := map[string]int{} // failures for lack of space, by command
	succeeded := [5]int{}          // how often each of the commands below succeeded in a row
	for freePages := range 10 {
		for i, c := range []struct{ step, before []string }{
			{[]string{"apply", "-f", functions}, nil}, // with a new state file
			{[]string{"apply", "-f", functions}, nil},
			{[]string{"up", plan}, []string{"apply", "-f", functions}},
			{[]string{"down"}, []string{"up", plan}},
			{[]string{"rm", "f"}, []string{"apply", "-f", functions}},
		} {
			if succeeded[i] == 2 { // more space makes no difference
				continue
			}
			resize(plenty)
			// Without a state file, the writes need new pages, while an existing file may have free ones. The
			// second apply is the case of an existing file, and up before down needs the registered function.
			if i != 1 && c.step[0] != "down" {
				_ = os.Remove(filepath.Join(disk, "state.db"))
			}
			if c.before != nil {
				must(c.before...)
			}
			resize(max(used()+freePages, 1))
			_, stderr, status := gfaas(c.step...)
			succeeded[i]++
			if status != 0 {
				succeeded[i] = 0
			}
			switch {
			case status == 0:
			case status != 1 || !strings.Contains(stderr, "no space left") || !strings.Contains(stderr, "hint: make room") || strings.Contains(stderr, "goroutine"):
				t.Fatalf("gfaas %s with %d free pages: got exit status %d, want 0, or 1 with \"no space left\" and a hint: %s", c.step[0], freePages, status, stderr)
			default:
				outOfSpace[c.step[0]]++
				out, stderr, status := gfaas("ps", "-o", "csv")
				if status != 0 || c.step[0] != "down" && strings.Contains(out, ",ready,") {
					t.Fatalf("gfaas ps after %s with %d free pages: got exit status %d, want 0 and no ready instance: %s%s", c.step[0], freePages, status, out, stderr)
				}
			}
			resize(plenty)
			if c.step[0] == "down" {
				must("down")
				if out, stderr, status := gfaas("ps", "-o", "csv"); status != 0 || strings.Count(out, "\n") != 1 {
					t.Fatalf("gfaas ps after down: got exit status %d, want 0 and no instance: %s%s", status, out, stderr)
				}
			}
			if c.step[0] == "up" {
				must("down")
			}
		}
	}
	if outOfSpace["apply"] < 5 { // other commands may reuse pages
		t.Errorf("failures for lack of space, by command: got %v, want at least 5 of apply", outOfSpace)
	}
}
