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

// slowPlan has one instance that is ready and one that never will be.
func slowPlan(p *place) {
	p.write("f.yaml", `{name: fine, command: ["`+p.getenv("FUNCTION")+`"]}
---
{name: slow, command: ["`+p.getenv("FUNCTION")+`"], env: {NEVER_READY: "1"}}
`)
	p.write("plan.json", planOf("fine-0", "slow-0"))
	p.output("apply", "-f", "f.yaml")
}

// startSlowUp starts an up that waits for an instance that is never ready.
func startSlowUp(t *testing.T, p *place) *exec.Cmd {
	t.Helper()
	slowPlan(p)
	cmd := p.command("up", "plan.json")
	cmd.Args = append([]string{"sh", "-c", `trap "" INT; exec "$@"`, "sh"}, cmd.Args...) // as in the background of a script
	cmd.Path = p.look("sh")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both instances were started", func() bool {
		out, err := p.command("ps", "-o", "csv").Output()
		if code := exitStatus(err); code == cli.ExitLocked {
			return false // up writes, on a disk that may be slow
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
		p := newPlace(t)
		heed(t)
		cmd := startSlowUp(t, p)
		if n := p.functions(); n != 2 {
			t.Errorf("%d processes run, want 2: %s", n, p.output("ps", "-o", "csv"))
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := exitStatus(cmd.Wait()); got != want {
			t.Errorf("%v: exit status %d, want %d", sig, got, want)
		}
		p.nothing()
	}
}

// An up that was killed is cleaned up after by down, even if it had no time to
// write down what it had started.
func TestUpKilled(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		p := newPlace(t)
		cmd := startSlowUp(t, p)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if lost {
			forget(t, p, "slow-0")
		}
		if text := p.output("ps", "-o", "csv"); !strings.Contains(text, ",starting,") {
			t.Errorf("ps: %s", text)
		}
		p.output("down")
		p.nothing()
	}
}

// forget takes the handle out of a record, as if it was never written.
func forget(t *testing.T, p *place, id string) {
	t.Helper()
	store := bolt.Open(filepath.Join(p.dir, "state.db"), nil)
	state, err := store.Look(t.Context())
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

// Commands that only read the state do not stand in each other's way.
func TestManyInvocations(t *testing.T) {
	p := newPlace(t)
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
				errs[i] = fmt.Errorf("answer %q, want %q", text, body)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	p.output("down")
	p.nothing()
}
