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

// family is a shell program that starts and prints the PIDs of itself, a child, a grandchild, a process in its own
// session whose parent has ended, and a process with an empty environment.
const family = `echo $$
sleep 600 & echo $!
sh -c 'sleep 600 & echo $!; wait' &
sh -c 'setsid sh -c "echo \$\$; exec sleep 600" &'
env -i PATH="$PATH" sh -c 'echo $$; exec sleep 600' &
`

// startFamily starts the script under gfaas run with the real library and returns the PIDs that it prints.
func startFamily(t *testing.T, p *environment, script string, flags ...string) (run *exec.Cmd, members []int) {
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
		t.Fatalf("processes of the script: got %v, want 5", members)
	}
	return cmd, members
}

func stillAlive(pids []int) (out []int) {
	for _, pid := range pids {
		if procfs.Alive(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// known reports whether the token daemon knows the slice kin.
func (p *environment) known() bool { return p.knows("kin") }

// knows reports whether the token daemon knows an instance whose ID begins with id.
func (p *environment) knows(id string) bool {
	cmd := p.command()
	cmd.Path, cmd.Args = p.lookPath("gfaas-tokend"), []string{"gfaas-tokend", "status", "-o", "csv"}
	text, _ := cmd.Output() // without a daemon, no instance is known
	return strings.Contains(string(text), ","+id)
}

// TestRunIsKilled checks that all processes of a gfaas run end when it is killed.
func TestRunIsKilled(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	run, members := startFamily(t, p, family+"wait")
	if err := run.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all processes of the killed gfaas run have ended", func() bool { return len(stillAlive(members)) == 0 })
	eventually(t, "the slice kin is removed", func() bool { return !p.known() })
}

// TestRunIsKilledAndDetached checks that the processes survive with --detach-on-kill.
func TestRunIsKilledAndDetached(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	run, members := startFamily(t, p, family+"wait", "--detach-on-kill")
	if err := run.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait()
	eventually(t, "the slice kin is removed", func() bool { return !p.known() })
	if remaining := stillAlive(members); len(remaining) != len(members) {
		t.Errorf("remaining processes: got %v, want all of %v", remaining, members)
	}
}

// TestBackgroundProcessesOutliveTheCommand checks that background processes survive when the command ends by itself.
func TestBackgroundProcessesOutliveTheCommand(t *testing.T) {
	p := newEnvironment(t)
	run, members := startFamily(t, p, family+"read go || :") // read returns at the end of its input
	_ = run.Wait()
	eventually(t, "the slice kin is removed", func() bool { return !p.known() })
	if remaining := stillAlive(members[1:]); len(remaining) != len(members)-1 {
		t.Errorf("remaining background processes: got %v, want %v", remaining, members[1:])
	}
}
