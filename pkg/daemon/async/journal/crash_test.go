package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// acceptUntilKilled accepts calls and ends most of them. It prints each operation after it
// is on disk.
func acceptUntilKilled(dir string) int {
	j, err := Open(dir, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	report := func(event, id string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			fmt.Fprintln(os.Stderr, id, err)
			os.Exit(1)
		}
		fmt.Println(event, id)
	}
	for w := range 8 {
		go func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, n)
				size := rand.Intn(3000)
				if n%50 == 0 {
					size = maxInline + 1
				}
				report("accepted", id, j.accept(newCall(id), bytes.Repeat([]byte{byte(len(id))}, size)))
				if n%10 == 0 {
					continue
				}
				report("ends", id, nil) // from here on, the call may have ended
				report("ended", id, j.Put(Call{ID: id, State: Done, Ended: time.Now()}, nil))
			}
		}()
	}
	select {}
}

// TestKill checks that after a kill, every accepted call is in the journal, and ended calls
// are not queued again.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	reported := map[string]string{}
	for round := range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "GFAAS_TEST_JOURNAL="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, most := bufio.NewScanner(out), 50+rand.Intn(600)
		for n := 0; lines.Scan(); n++ {
			event, id, _ := strings.Cut(lines.Text(), " ")
			reported[id] = event
			if n == most {
				_ = cmd.Process.Kill()
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("round %d: the process ended with %v, want it killed by a signal", round, err)
		}
		j := opened(t, dir)
		pending := pendingBodies(t, j)
		for id, event := range reported {
			c, known := j.Get(id)
			_, waits := pending[id]
			switch {
			case !known && event == "accepted": // the oldest ended calls are forgotten
				t.Errorf("round %d: call %s, last reported as %q: got no such call in the journal, want a pending one", round, id, event)
			case event == "accepted" && !waits, event == "ended" && waits:
				t.Errorf("round %d: call %s, last reported as %q: got the state %s (pending: %v), want accepted calls pending and ended calls not", round, id, event, c.State, waits)
			}
		}
		if len(pending) < len(reported)/20 {
			t.Errorf("round %d: pending calls: got %d of %d, want at least %d", round, len(pending), len(reported), len(reported)/20)
		}
		_ = j.Close()
	}
}

// TestFullDisk checks that, on a full disk, no new call is accepted, no accepted call is
// lost, and all calls can end; after that, there is space again.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=6m"); err != nil {
		if os.Getenv("CI") != "" || os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip("needs root:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir := filepath.Join(disk, "async")
	j := opened(t, dir)
	for round := range 3 {
		var ids []string
		for n, refused := 0, 0; refused < 20; n++ {
			id := fmt.Sprintf("%d-%d", round, n)
			b := j.NewBody()
			_, err := b.Write(make([]byte, []int{100, maxInline, 300 << 10}[n%3]))
			if err == nil {
				err = j.Accept(newCall(id), b)
			}
			b.Discard()
			switch {
			case err == nil:
				ids = append(ids, id)
			case errors.Is(err, unix.ENOSPC):
				refused++
			default:
				t.Fatal(err)
			}
		}
		want := pendingBodies(t, j)
		if len(want) != len(ids) || len(ids) < 20 {
			t.Fatalf("full disk: got %d accepted and %d pending calls, want equal numbers of at least 20", len(ids), len(want))
		}
		// Another program uses the remaining space.
		other := filepath.Join(disk, "other")
		if f, err := os.Create(other); err == nil {
			for b := make([]byte, 4096); err == nil; {
				_, err = f.Write(b)
			}
			_ = f.Close()
		}
		_ = j.Close()
		j = opened(t, dir)
		same(t, "opened while the disk is full", pendingBodies(t, j), want)
		for _, id := range ids {
			if err := j.Put(Call{ID: id, State: Done, Ended: time.Now()}, nil); err != nil {
				t.Fatalf("end call %s on a full disk: %v", id, err)
			}
		}
		_ = j.Close()
		j = opened(t, dir)
		if pending := pendingBodies(t, j); len(pending) > 0 {
			t.Errorf("pending calls after all have ended: got %d, want 0", len(pending))
		}
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
}
