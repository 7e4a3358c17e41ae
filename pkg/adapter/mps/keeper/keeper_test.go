package keeper

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

// newTestKeeper returns a keeper that uses the stand-in for MPS and logs to the buffer.
func newTestKeeper(t *testing.T) (*Keeper, *bytes.Buffer) {
	t.Helper()
	mpstest.Install(t)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir()) // excludes a daemon of the host's administrator
	var log bytes.Buffer
	k := New(t.TempDir(), false, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(k.Stop)
	return k, &log
}

func TestKeeperStartsWhenNeeded(t *testing.T) {
	k, log := newTestKeeper(t)
	for _, r := range []wire.Registration{share("sim", 24), share("0", 100)} {
		if got := k.Prepare(t.Context(), r); got != (wire.Registered{}) || k.daemon.PID() != 0 {
			t.Errorf("%s at %v%%: got %+v and MPS with PID %d, want neither", r.GPU, r.SMPct, got, k.daemon.PID())
		}
	}
	spanning := share("0", 100)
	spanning.More = []wire.Allocation{share("1", 50).Allocation}
	for _, r := range []wire.Registration{share("0", 24), spanning} {
		got := k.Prepare(t.Context(), r)
		if got.MPSPipeDir != k.daemon.PipeDir() || got.Note != "" || k.daemon.PID() == 0 {
			t.Errorf("registration: got %+v and MPS with PID %d, want the pipe folder %s without a note; log: %s", got, k.daemon.PID(), k.daemon.PipeDir(), log)
		}
	}
	k.Stop()
	if k.daemon.PID() != 0 {
		t.Errorf("MPS after the stop: got PID %d, want none", k.daemon.PID())
	}
}

func TestKeeperReportsFailedStart(t *testing.T) {
	k, _ := newTestKeeper(t)
	if err := os.MkdirAll(k.daemon.PipeDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.daemon.PipeDir(), "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	off, missing := *New(t.TempDir(), true, k.log), *New(t.TempDir(), false, k.log)
	missing.found = false
	for want, k := range map[string]*Keeper{"Cannot bind": k, "--mps off": &off, "not installed": &missing} {
		if got := k.Prepare(t.Context(), share("0", 24)); !strings.Contains(got.Note, want) || got.MPSPipeDir != "" {
			t.Errorf("registration without MPS: got %+v, want a note with %q and no pipe folder", got, want)
		}
	}
}

// server adds a server with the given state and client to the stand-in for MPS.
func server(t *testing.T, d mps.Daemon, pid int, state string, client int) {
	t.Helper()
	for name, text := range map[string]string{"server": state, "clients": fmt.Sprint(client)} {
		if err := os.WriteFile(filepath.Join(d.PipeDir(), fmt.Sprintf("%s.%d", name, pid)), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFault checks that the log reports a fault with its reason. A server that recovers
// is not restarted. If its clients do not end, MPS is restarted.
func TestFault(t *testing.T) {
	k, log := newTestKeeper(t)
	k.Prepare(t.Context(), share("0", 24))
	dead := exec.Command("sleep", "600")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dead.Process.Kill(); _ = dead.Wait() })
	if err := os.WriteFile(filepath.Join(k.daemon.Dir, "log", "server.log"), []byte("MMU fault\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	started, before := time.Now(), k.daemon.PID()
	server(t, k.daemon, dead.Process.Pid, "FAULT", 4711)
	k.check(t.Context(), started)
	if !strings.Contains(log.String(), "MMU fault") || !strings.Contains(log.String(), "4711") {
		t.Fatalf("log: want the reason \"MMU fault\" and the client 4711, got %s", log)
	}
	server(t, k.daemon, dead.Process.Pid, "ACTIVE", 4711)
	k.check(t.Context(), started.Add(mpsLook))
	if !strings.Contains(log.String(), "recovered") || k.daemon.PID() != before {
		t.Fatalf("MPS after the recovery: got PID %d, want %d and a log with \"recovered\": %s", k.daemon.PID(), before, log)
	}
	server(t, k.daemon, dead.Process.Pid, "FAULT", 4711)
	k.check(t.Context(), started)
	k.check(t.Context(), started.Add(mpsDrain))
	if after := k.daemon.PID(); after == 0 || after == before || !strings.Contains(log.String(), "restarting MPS") {
		t.Errorf("MPS after a lasting fault: got PID %d, want another than %d and a log of the restart: %s", after, before, log)
	}
}

// TestKeeperOutlivesDaemon checks that a token daemon that ends while processes use MPS
// leaves it running for the next token daemon. If MPS was killed, the keeper starts it
// again.
func TestKeeperOutlivesDaemon(t *testing.T) {
	k, log := newTestKeeper(t)
	k.Prepare(t.Context(), share("0", 24))
	server(t, k.daemon, os.Getpid(), "ACTIVE", 4711)
	k.Stop()
	if k.daemon.PID() == 0 {
		t.Fatal("MPS with clients, after the stop: got no PID, want it to run")
	}
	next := New(filepath.Dir(k.daemon.Dir), false, k.log)
	if next.adopt(); !next.wanted {
		t.Error("next daemon: got wanted false, want it to adopt MPS")
	}
	if err := os.Remove(filepath.Join(k.daemon.PipeDir(), fmt.Sprintf("server.%d", os.Getpid()))); err != nil {
		t.Fatal(err)
	}
	next.Stop()
	if next.daemon.PID() != 0 {
		t.Fatalf("MPS without clients, after the stop: got PID %d, want none", next.daemon.PID())
	}
	next.check(t.Context(), time.Now())
	if next.daemon.PID() == 0 || !strings.Contains(log.String(), "has ended; starting it again") {
		t.Errorf("killed MPS after the check: got PID %d, want a restart and a log of it: %s", next.daemon.PID(), log)
	}
	next.Stop()
}

// TestSlowDaemon checks that an MPS daemon that answers slowly, but runs, delays neither
// the start of an instance, whatever the keeper is asking it, nor the end of the token
// daemon, for which the next token daemon waits.
func TestSlowDaemon(t *testing.T) {
	const long = 8 * time.Second // less than the time limit of an answer, more than all bounds below
	for name, busy := range map[string]func(k *Keeper){
		"list of servers": func(k *Keeper) { k.check(t.Context(), time.Now()) },
		"restart":         func(k *Keeper) { k.restart(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			k, log := newTestKeeper(t)
			first := k.Prepare(t.Context(), share("0", 24))
			mpstest.Slow(t, k.daemon.PipeDir(), long)
			var asking sync.WaitGroup
			asking.Go(func() { busy(k) })
			queried := filepath.Join(k.daemon.PipeDir(), "asked")
			eventually(t, "the keeper has queried the MPS daemon", func() bool { _, err := os.Stat(queried); return err == nil })
			started := time.Now()
			if got := k.Prepare(t.Context(), share("0", 24)); got.MPSPipeDir != first.MPSPipeDir {
				t.Errorf("registration: got %+v, want the pipe folder of the running daemon", got)
			}
			if elapsed := time.Since(started); elapsed > long/2 {
				t.Errorf("start while MPS answers slowly: took %v, want at most %v", elapsed, long/2)
			}
			if name == "list of servers" {
				started = time.Now()
				k.Stop()
				if elapsed := time.Since(started); elapsed > long/2 || k.daemon.PID() == 0 {
					t.Errorf("stop while MPS answers slowly: took %v and left MPS with PID %d, want at most %v and MPS running: %s", elapsed, k.daemon.PID(), long/2, log)
				}
			}
			if err := os.Remove(filepath.Join(k.daemon.PipeDir(), "slow")); err != nil {
				t.Error(err)
			}
			asking.Wait()
		})
	}
}

// eventually waits until ok returns true.
func eventually(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for: %s", condition)
		}
	}
}

// TestDoomed checks that the keeper ends the GPU work of clients before they are killed.
// If that fails, it logs the failure.
func TestDoomed(t *testing.T) {
	k, log := newTestKeeper(t)
	k.Prepare(t.Context(), share("0", 24))
	server(t, k.daemon, 4<<20+1, "ACTIVE", 4711) // beyond the range of PIDs
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
	k.Doomed(t.Context(), []int{client.Process.Pid})
	want := []string{fmt.Sprint(4<<20+1, " ", client.Process.Pid)}
	if got := mpstest.Terminated(t, k.daemon.PipeDir()); !slices.Equal(got, want) || log.Len() == 0 || strings.Contains(log.String(), "WARN") {
		t.Errorf("terminated %q, want %q: %s", got, want, log)
	}
	if err := os.WriteFile(filepath.Join(k.daemon.PipeDir(), "server.none"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k.Doomed(t.Context(), []int{client.Process.Pid})
	if !strings.Contains(log.String(), "cannot end the GPU work") {
		t.Errorf("log: got %s, want the failure", log)
	}
	for _, name := range []string{"server.none", fmt.Sprint("server.", 4<<20+1), fmt.Sprint("clients.", 4<<20+1)} {
		_ = os.Remove(filepath.Join(k.daemon.PipeDir(), name)) // so that the daemon ends with the test
	}
}
