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

// with has a command start with so few descriptors.
func (p *place) with(descriptors int, args ...string) *exec.Cmd {
	cmd := p.command(args...)
	cmd.Args = append([]string{"sh", "-c", `ulimit -n "$0"; exec "$@"`, strconv.Itoa(descriptors)}, cmd.Args...)
	cmd.Path = p.look("sh")
	return cmd
}

// However few descriptors a command is left, it does what it should or says what
// is missing: it does not die of it, and an up that failed leaves nothing.
func TestFewDescriptors(t *testing.T) {
	p := newPlace(t)
	p.write("f.yaml", `{name: f, command: ["`+p.getenv("FUNCTION")+`"]}`)
	p.write("first.json", planOf("f-0"))
	p.write("second.json", planOf("f-1"))
	p.output("apply", "-f", "f.yaml")
	p.output("up", "first.json")
	failures, enough := 0, false
	// With fewer than 8 the Go runtime itself cannot begin.
	for n := 8; n < 64 && !enough; n++ {
		for _, args := range [][]string{{"up", "second.json"}, {"ps"}, {"logs", "f"}, {"invoke", "f"}, {"down", "f-1"}} {
			text, err := p.with(n, args...).CombinedOutput()
			what := fmt.Sprintf("%d descriptors: gfaas %v", n, args)
			switch code := exitStatus(err); {
			case strings.Contains(string(text), "goroutine "), code == 2, code < 0, code > 127:
				t.Errorf("%s: status %d\n%s", what, code, text)
			case code != 0 && !strings.Contains(string(text), "gfaas"):
				t.Errorf("%s: status %d and %q, want a message", what, code, text)
			case code != 0:
				failures++
			case args[0] == "up":
				enough = true
			}
			if args[0] == "up" && exitStatus(err) != 0 {
				if left := p.output("ps", "-o", "csv"); strings.Contains(left, "f-1") || p.functions() != 1 {
					t.Errorf("%s failed and left %d instances:\n%s%s", what, p.functions()-1, text, left)
					p.output("down", "f-1")
				}
			}
		}
	}
	if failures == 0 || !enough {
		t.Errorf("%d commands failed, and in the end there were enough: %v", failures, enough)
	}
	p.output("down")
	p.nothing()
}

// A script may hold a file open at a number beyond the limit on open files that it sets
// afterwards. The command of gfaas run inherits it; nothing that runs on does.
func TestDescriptorBeyondTheLimit(t *testing.T) {
	p := newPlace(t)
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
		{"run", "--gpu", "sim", "--", "test", "-e", inherited}, // it starts a token daemon
		{"apply", "-f", "f.yaml"},
		{"up", "plan.json"}, // an instance and the keeper of its log
		{"invoke", "f"},
		{"run", "--gpu", "sim", "--", "test", "-e", inherited},
	} {
		if text, err := p.with(128, args...).CombinedOutput(); err != nil {
			t.Errorf("gfaas %v: %v\n%s", args, err, text)
		}
	}
	p.output("down")
	p.nothing()
}
