package tokend

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// share is a registration with one part of one GPU.
func share(gpu string, sm float64) wire.Registration {
	return wire.Registration{Instance: "a", Allocation: wire.Allocation{GPU: gpu, SMPct: sm, QuotaRequest: 1, QuotaLimit: 1}}
}

// keep makes a keeper on the stand-in for MPS; what it logs is in the buffer.
func keep(t *testing.T) (*keeper, *bytes.Buffer) {
	t.Helper()
	mpstest.Install(t)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir()) // no owner's daemon there
	var log bytes.Buffer
	k := newKeeper(t.TempDir(), false, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(k.stop)
	return k, &log
}

func TestKeeperStartsWhenNeeded(t *testing.T) {
	k, log := keep(t)
	for _, r := range []wire.Registration{share("sim", 24), share("0", 100)} {
		if got := k.prepare(t.Context(), r); got != (wire.Registered{}) || k.daemon.PID() != 0 {
			t.Errorf("%s at %v%%: %+v, PID %d", r.GPU, r.SMPct, got, k.daemon.PID())
		}
	}
	spanning := share("0", 100)
	spanning.More = []wire.Allocation{share("1", 50).Allocation}
	for _, r := range []wire.Registration{share("0", 24), spanning} {
		got := k.prepare(t.Context(), r)
		if got.MPSPipeDir != k.daemon.PipeDir() || got.Note != "" || k.daemon.PID() == 0 {
			t.Errorf("%+v, PID %d: %s", got, k.daemon.PID(), log)
		}
	}
	k.stop()
	if k.daemon.PID() != 0 {
		t.Error("left behind")
	}
}

func TestKeeperSaysWhyNot(t *testing.T) {
	k, _ := keep(t)
	if err := os.MkdirAll(k.daemon.PipeDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.daemon.PipeDir(), "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	off, missing := *newKeeper(t.TempDir(), true, k.log), *newKeeper(t.TempDir(), false, k.log)
	missing.found = false
	for want, k := range map[string]*keeper{"Cannot bind": k, "--mps off": &off, "not installed": &missing} {
		if got := k.prepare(t.Context(), share("0", 24)); !strings.Contains(got.Note, want) || got.MPSPipeDir != "" {
			t.Errorf("%+v, want a note of %s", got, want)
		}
	}
}

// server gives the stand-in a server in that state with that client.
func server(t *testing.T, d mps.Daemon, pid int, state string, client int) {
	t.Helper()
	for name, text := range map[string]string{"server": state, "clients": fmt.Sprint(client)} {
		if err := os.WriteFile(filepath.Join(d.PipeDir(), fmt.Sprintf("%s.%d", name, pid)), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFault: a fault is said with its reason; a server that recovers is left
// alone, one whose clients do not end is restarted.
func TestFault(t *testing.T) {
	k, log := keep(t)
	k.prepare(t.Context(), share("0", 24))
	dead := exec.Command("sleep", "600")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dead.Process.Kill(); _ = dead.Wait() })
	if err := os.WriteFile(filepath.Join(k.daemon.Dir, "log", "server.log"), []byte("MMU fault\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	began, before := time.Now(), k.daemon.PID()
	server(t, k.daemon, dead.Process.Pid, "FAULT", 4711)
	k.look(t.Context(), began)
	if !strings.Contains(log.String(), "MMU fault") || !strings.Contains(log.String(), "4711") {
		t.Fatalf("the log does not say why and who: %s", log)
	}
	server(t, k.daemon, dead.Process.Pid, "ACTIVE", 4711)
	k.look(t.Context(), began.Add(mpsLook))
	if !strings.Contains(log.String(), "recovered") || k.daemon.PID() != before {
		t.Fatalf("PID %d, then %d: %s", before, k.daemon.PID(), log)
	}
	server(t, k.daemon, dead.Process.Pid, "FAULT", 4711)
	k.look(t.Context(), began)
	k.look(t.Context(), began.Add(mpsDrain))
	if after := k.daemon.PID(); after == 0 || after == before || !strings.Contains(log.String(), "restarting MPS") {
		t.Errorf("PID %d, then %d: %s", before, after, log)
	}
}

// TestKeeperOutlivesDaemon: a token daemon that ends while processes use MPS
// leaves it to the next one; killed, MPS is started again.
func TestKeeperOutlivesDaemon(t *testing.T) {
	k, log := keep(t)
	k.prepare(t.Context(), share("0", 24))
	server(t, k.daemon, os.Getpid(), "ACTIVE", 4711)
	k.stop()
	if k.daemon.PID() == 0 {
		t.Fatal("stopped under its clients")
	}
	next := newKeeper(filepath.Dir(k.daemon.Dir), false, k.log)
	if next.takeOver(); !next.wanted {
		t.Error("the next daemon does not take it over")
	}
	if err := os.Remove(filepath.Join(k.daemon.PipeDir(), fmt.Sprintf("server.%d", os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	next.stop()
	if next.daemon.PID() != 0 {
		t.Fatal("left behind")
	}
	next.look(t.Context(), time.Now())
	if next.daemon.PID() == 0 || !strings.Contains(log.String(), "gone, starting it again") {
		t.Errorf("not started again: %s", log)
	}
	next.stop()
}

// TestSlowDaemon: an MPS daemon that takes long to answer stalls no start while it runs,
// whatever the keeper asks it meanwhile, and no end of the token daemon, which the next one
// waits for.
func TestSlowDaemon(t *testing.T) {
	const long = 8 * time.Second // less than the limit on an answer, more than all bounds below
	for name, busy := range map[string]func(k *keeper){
		"list of servers": func(k *keeper) { k.look(t.Context(), time.Now()) },
		"restart":         func(k *keeper) { k.restart(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			k, log := keep(t)
			first := k.prepare(t.Context(), share("0", 24))
			mpstest.Slow(t, k.daemon.PipeDir(), long)
			var asking sync.WaitGroup
			asking.Go(func() { busy(k) })
			asked := filepath.Join(k.daemon.PipeDir(), "asked")
			eventually(t, "the daemon is asked", func() bool { _, err := os.Stat(asked); return err == nil })
			began := time.Now()
			if got := k.prepare(t.Context(), share("0", 24)); got.MPSPipeDir != first.MPSPipeDir {
				t.Errorf("%+v, want the daemon's folder", got)
			}
			if took := time.Since(began); took > long/2 {
				t.Errorf("a start waits %v", took)
			}
			if name == "list of servers" {
				began = time.Now()
				k.stop()
				if took := time.Since(began); took > long/2 || k.daemon.PID() == 0 {
					t.Errorf("the end waits %v, and the MPS daemon is %d: %s", took, k.daemon.PID(), log)
				}
			}
			if err := os.Remove(filepath.Join(k.daemon.PipeDir(), "slow")); err != nil {
				t.Error(err)
			}
			asking.Wait()
		})
	}
}

// eventually waits until it is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// TestDoomed: the GPU work of clients ends before they are killed; where that fails, the log
// has it.
func TestDoomed(t *testing.T) {
	k, log := keep(t)
	k.prepare(t.Context(), share("0", 24))
	server(t, k.daemon, 4<<20+1, "ACTIVE", 4711) // beyond the numbers of processes
	client := exec.Command(mpstest.Client(t))
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Process.Kill(); _ = client.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	k.doomed(t.Context(), []int{client.Process.Pid})
	want := []string{fmt.Sprint(4<<20+1, " ", client.Process.Pid)}
	if got := mpstest.Terminated(t, k.daemon.PipeDir()); !slices.Equal(got, want) || log.Len() == 0 || strings.Contains(log.String(), "WARN") {
		t.Errorf("terminated %q, want %q: %s", got, want, log)
	}
	if err := os.WriteFile(filepath.Join(k.daemon.PipeDir(), "server.none"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k.doomed(t.Context(), []int{client.Process.Pid})
	if !strings.Contains(log.String(), "cannot end the GPU work") {
		t.Errorf("the log does not have the failure: %s", log)
	}
	for _, name := range []string{"server.none", fmt.Sprint("server.", 4<<20+1), fmt.Sprint("clients.", 4<<20+1)} {
		_ = os.Remove(filepath.Join(k.daemon.PipeDir(), name)) // the daemon ends with the test
	}
}
