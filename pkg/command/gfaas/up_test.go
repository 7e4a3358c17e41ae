package gfaas

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance"
)

// slowPlan writes a plan with an instance that becomes ready and an instance that never does.
func slowPlan(p *environment) {
	p.write("f.yaml", `{name: fine, command: ["`+p.getenv("FUNCTION")+`"]}
---
{name: slow, command: ["`+p.getenv("FUNCTION")+`"], env: {NEVER_READY: "1"}}
`)
	p.write("plan.json", planOf("fine-0", "slow-0"))
	p.output("apply", "-f", "f.yaml")
}

// startSlowUp starts a gfaas up that waits for an instance in vain.
func startSlowUp(t *testing.T, p *environment) *exec.Cmd {
	t.Helper()
	slowPlan(p)
	cmd := p.command("up", "plan.json")
	cmd.Args = append([]string{"sh", "-c", `trap "" INT; exec "$@"`, "sh"}, cmd.Args...) // like a background job of a script
	cmd.Path = p.lookPath("sh")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both instances were started", func() bool {
		out, err := p.command("ps", "-o", "csv").Output()
		if code := exitStatus(err); code == cli.ExitLocked {
			return false // up is writing the state
		} else if code != 0 {
			t.Fatal(err)
		}
		text := string(out)
		return strings.Contains(text, ",ready,") && strings.Contains(text, "slow-0,slow,process,sim,") &&
			!strings.Contains(text, "slow-0,slow,process,sim,,")
	})
	return cmd
}

func TestUpInterrupted(t *testing.T) {
	t.Parallel()
	for sig, want := range map[syscall.Signal]int{unix.SIGINT: 130, unix.SIGTERM: 143, unix.SIGHUP: 129} {
		p := newEnvironment(t)
		restoreSignals(t)
		cmd := startSlowUp(t, p)
		if n := p.functions(); n != 2 {
			t.Errorf("processes of functions: got %d, want 2: %s", n, p.output("ps", "-o", "csv"))
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := exitStatus(cmd.Wait()); got != want {
			t.Errorf("exit status of gfaas up after %v: got %d, want %d", sig, got, want)
		}
		p.checkNothingRemains()
	}
}

// TestUpKilled checks that gfaas down cleans up after a killed gfaas up, even if up had no time to record the instances
// that it had started.
func TestUpKilled(t *testing.T) {
	t.Parallel()
	for _, unrecorded := range []bool{false, true} {
		p := newEnvironment(t)
		cmd := startSlowUp(t, p)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if unrecorded {
			removeHandle(t, p, "slow-0")
		}
		if text := p.output("ps", "-o", "csv"); !strings.Contains(text, ",starting,") {
			t.Errorf(`gfaas ps after the kill: got %s, want ",starting," in it`, text)
		}
		p.output("down")
		p.checkNothingRemains()
	}
}

// removeHandle removes the handle from a record, as if it had never been written.
func removeHandle(t *testing.T, p *environment, id string) {
	t.Helper()
	store := bolt.Open(filepath.Join(p.dir, "state.db"), nil)
	state, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range state.Instances {
		if r.ID == id {
			r.Handle = instance.Handle{}
			if err := store.Update(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestManyInvocations checks that concurrent commands which only read the state do not block each other.
func TestManyInvocations(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	slowPlan(p)
	p.write("plan.json", planOf("fine-0", "fine-1"))
	p.output("up", "plan.json")
	const clients = 40
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		cmd := p.command("invoke", "fine")
		body := fmt.Sprintf("body %d", i)
		cmd.Stdin = strings.NewReader(body)
		wg.Go(func() {
			text, err := cmd.Output()
			if errs[i] = err; err == nil && string(text) != body {
				errs[i] = fmt.Errorf("answer of invocation %d: got %q, want %q", i, text, body)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	p.output("down")
	p.checkNothingRemains()
}
