package gfaas

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// family is a shell program that prints the numbers of its process and of others: a
// child, a grandchild, one in a session of its own whose parent has ended, and one
// whose environment was cleared.
const family = `echo $$
sleep 600 & echo $!
sh -c 'sleep 600 & echo $!; wait' &
sh -c 'setsid sh -c "echo \$\$; exec sleep 600" &'
env -i PATH="$PATH" sh -c 'echo $$; exec sleep 600' &
`

// startFamily starts that under gfaas run, by the library that make has built.
func startFamily(t *testing.T, p *place, script string, flags ...string) (run *exec.Cmd, members []int) {
	t.Helper()
	cmd := p.command(append(append([]string{"run", "-q", "--name", "kin"}, flags...), "--", "sh", "-c", script)...)
	cmd.Env = append(cmd.Env, "GFAAS_LIB_DIR="+built("lib"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for _, pid := range members {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	for lines := bufio.NewScanner(out); len(members) < 5 && lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, pid)
	}
	if len(members) < 5 {
		t.Fatalf("it began with %v only", members)
	}
	return cmd, members
}

func stillThere(pids []int) (out []int) {
	for _, pid := range pids {
		if procfs.Alive(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// known reports whether the token daemon knows the slice.
func (p *place) known() bool { return p.knows("kin") }

// knows reports whether the token daemon knows an instance whose ID begins so.
func (p *place) knows(id string) bool {
	cmd := p.command()
	cmd.Path, cmd.Args = p.look("gfaas-tokend"), []string{"gfaas-tokend", "status", "-o", "csv"}
	text, _ := cmd.Output() // without a daemon no instance is known
	return strings.Contains(string(text), ","+id)
}

// What gfaas run has started ends with it when it is killed, all of it.
func TestRunIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	run, members := startFamily(t, p, family+"wait")
	if err := run.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all end", func() bool { return len(stillThere(members)) == 0 })
	eventually(t, "the slice goes", func() bool { return !p.known() })
}

// With --detach-on-kill it goes on.
func TestRunIsKilledAndDetached(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	run, members := startFamily(t, p, family+"wait", "--detach-on-kill")
	if err := run.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait()
	eventually(t, "the daemon has seen it", func() bool { return !p.known() })
	if left := stillThere(members); len(left) != len(members) {
		t.Errorf("of %v there are %v", members, left)
	}
}

// What a command leaves behind when it ends by itself is not ended.
func TestRunLeavesWhatTheCommandLeft(t *testing.T) {
	p := newPlace(t)
	run, members := startFamily(t, p, family+"read go || :") // at the end of its input
	_ = run.Wait()
	eventually(t, "the slice goes", func() bool { return !p.known() })
	if left := stillThere(members[1:]); len(left) != len(members)-1 {
		t.Errorf("of %v there are %v", members, left)
	}
}
