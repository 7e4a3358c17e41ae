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
	say := func(what, id string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			fmt.Fprintln(os.Stderr, id, err)
			os.Exit(1)
		}
		fmt.Println(what, id)
	}
	for w := range 8 {
		go func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, n)
				size := rand.Intn(3000)
				if n%50 == 0 {
					size = maxInline + 1
				}
				say("accepted", id, j.accept(newCall(id), bytes.Repeat([]byte{byte(len(id))}, size)))
				if n%10 == 0 {
					continue
				}
				say("ends", id, nil) // from here on, the call may have ended
				say("ended", id, j.Put(Call{ID: id, State: Done, Ended: time.Now()}, nil))
			}
		}()
	}
	select {}
}

// TestKill: after a kill, every accepted call is in the journal, and ended calls are not
// queued again.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	said := map[string]string{}
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
			what, id, _ := strings.Cut(lines.Text(), " ")
			said[id] = what
			if n == most {
				_ = cmd.Process.Kill()
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("round %d: it was not killed: %v", round, err)
		}
		j := opened(t, dir)
		pending := pendingBodies(t, j)
		for id, what := range said {
			c, known := j.Get(id)
			_, waits := pending[id]
			switch {
			case !known && what == "accepted": // the oldest ended calls are forgotten
				t.Errorf("round %d: %s was %s, and nobody knows it", round, id, what)
			case what == "accepted" && !waits, what == "ended" && waits:
				t.Errorf("round %d: %s was %s, and is %s", round, id, what, c.State)
			}
		}
		if len(pending) < len(said)/20 {
			t.Errorf("round %d: %d are pending of %d", round, len(pending), len(said))
		}
		_ = j.Close()
	}
}

// TestFull: on a full disk, no new call is accepted, no accepted call is lost, and all
// calls can end; after that, there is space again.
func TestFull(t *testing.T) {
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
			t.Fatalf("%d were accepted, %d are kept", len(ids), len(want))
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
				t.Fatalf("%s cannot end: %v", id, err)
			}
		}
		_ = j.Close()
		j = opened(t, dir)
		if left := pendingBodies(t, j); len(left) > 0 {
			t.Errorf("%d have not ended", len(left))
		}
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
}
