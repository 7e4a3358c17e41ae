package gfaas

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// withDescriptorLimit returns a command with a limit on its file descriptors.
func (p *environment) withDescriptorLimit(descriptors int, args ...string) *exec.Cmd {
	cmd := p.command(args...)
	cmd.Args = append([]string{"sh", "-c", `ulimit -n "$0"; exec "$@"`, strconv.Itoa(descriptors)}, cmd.Args...)
	cmd.Path = p.lookPath("sh")
	return cmd
}

// TestFewDescriptors runs commands with any number of free file descriptors. They must succeed or report the missing
// resource, not crash, and a failed up must leave nothing behind.
func TestFewDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the same commands many times")
	}
	t.Parallel()
	p := newEnvironment(t)
	p.write("f.yaml", `{name: f, command: ["`+p.getenv("FUNCTION")+`"]}`)
	p.write("first.json", planOf("f-0"))
	p.write("second.json", planOf("f-1"))
	p.output("apply", "-f", "f.yaml")
	p.output("up", "first.json")
	failures, enough := 0, false
	// The Go runtime itself needs 8.
	for n := 8; n < 64 && !enough; n++ {
		for _, args := range [][]string{{"up", "second.json"}, {"ps"}, {"logs", "f"}, {"invoke", "f"}, {"down", "f-1"}} {
			text, err := p.withDescriptorLimit(n, args...).CombinedOutput()
			description := fmt.Sprintf("%d descriptors: gfaas %v", n, args)
			switch code := exitStatus(err); {
			case strings.Contains(string(text), "goroutine "), code == 2, code < 0, code > 127:
				t.Errorf("%s: got exit status %d, want success or a message about the shortage\n%s", description, code, text)
			case code != 0 && !strings.Contains(string(text), "gfaas"):
				t.Errorf("%s: got exit status %d and %q, want a message", description, code, text)
			case code != 0:
				failures++
			case args[0] == "up":
				enough = true
			}
			if args[0] == "up" && exitStatus(err) != 0 {
				if remaining := p.output("ps", "-o", "csv"); strings.Contains(remaining, "f-1") || p.functions() != 1 {
					t.Errorf("%s failed: got %d remaining instances, want 0:\n%s%s", description, p.functions()-1, text, remaining)
					p.output("down", "f-1")
				}
			}
		}
	}
	if failures == 0 || !enough {
		t.Errorf("got %d failed commands and a successful up: %v, want at least 1 and true", failures, enough)
	}
	p.output("down")
	p.checkNothingRemains()
}

// TestDescriptorBeyondTheLimit checks a script that keeps a file open at a number above the limit that it then sets.
// The command of gfaas run inherits the file; daemons and instances do not.
func TestDescriptorBeyondTheLimit(t *testing.T) {
	p := newEnvironment(t)
	p.write("f.yaml", `{name: f, command: ["`+p.getenv("FUNCTION")+`"]}`)
	p.write("plan.json", planOf("f-0"))
	file, err := os.Open(filepath.Join(p.dir, "plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	high, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD, 200) // without O_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	inherited := fmt.Sprintf("/proc/self/fd/%d", high)
	for _, args := range [][]string{
		{"run", "--gpu", "sim", "--", "test", "-e", inherited}, // also starts a token daemon
		{"apply", "-f", "f.yaml"},
		{"up", "plan.json"}, // starts an instance and its log keeper
		{"invoke", "f"},
		{"run", "--gpu", "sim", "--", "test", "-e", inherited},
	} {
		if text, err := p.withDescriptorLimit(128, args...).CombinedOutput(); err != nil {
			t.Errorf("gfaas %v: %v\n%s", args, err, text)
		}
	}
	p.output("down")
	p.checkNothingRemains()
}
