package bolt_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("GFAAS_TEST_STATE"); path != "" {
		os.Exit(writeUntilKilled(path))
	}
	m.Run()
}

// writeUntilKilled adds records and removes every third of them. It prints each operation
// after it has returned, and each removal also before it begins.
func writeUntilKilled(path string) int {
	db, ctx := bolt.Open(path, nil), context.Background()
	do := func(change func() error) {
		var locked *bolt.LockedError
		err := change()
		for errors.As(err, &locked) {
			err = change()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for n := 0; ; n++ {
		id := fmt.Sprintf("f-%d-%d", os.Getpid(), n)
		do(func() error { return db.Reserve(ctx, instance.Record{ID: id, Function: "f"}) })
		fmt.Println("added", id)
		if n%3 == 0 {
			fmt.Println("removing", id)
			do(func() error { return db.Forget(ctx, id) })
			fmt.Println("removed", id)
		}
	}
}

// Two writers at a time are killed wherever they are. Each change that they reported
// remains, and the current generation is never damaged.
func TestKilledWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	apply(t, path)
	said := map[string]string{}
	for round := range 15 {
		var mu sync.Mutex
		var writers sync.WaitGroup
		for range 2 {
			cmd := exec.Command(os.Args[0])
			cmd.Env, cmd.Stderr = append(os.Environ(), "GFAAS_TEST_STATE="+path), os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			writers.Go(func() {
				lines, most := bufio.NewScanner(out), 1+rand.IntN(30)
				for n := 1; lines.Scan(); n++ {
					description, id, _ := strings.Cut(lines.Text(), " ")
					mu.Lock()
					said[id] = description
					mu.Unlock()
					if n == most {
						_ = cmd.Process.Kill()
					}
				}
				if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
					t.Errorf("round %d: writer ended by itself with %v, want it killed", round, err)
				}
			})
		}
		writers.Wait()
		l, err := bolt.Open(path, func(format string, args ...any) { t.Errorf(format, args...) }).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		for _, r := range l.Instances {
			known[r.ID] = true
		}
		for id, description := range said {
			if description == "added" && !known[id] || description == "removed" && known[id] {
				t.Errorf("round %d: function %s was %s, but is in the state: %v", round, id, description, known[id])
			}
		}
	}
	apply(t, path)
	wantFiles(t, path, "state.db", "state.db.previous")
}

// wantFiles checks which files are in the folder of a state file.
func wantFiles(t *testing.T, path string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("files %v, %v; want %v", got, err, want)
	}
}

// A writer that ends between any two of its steps leaves the state before or after
// its change, and the next writer continues from there.
func TestCrashBetweenSteps(t *testing.T) {
	made := filepath.Join(t.TempDir(), "state.db")
	var generations [][]byte
	for _, name := range []string{"a", "b", "c"} {
		if err := bolt.Open(made, nil).Apply(t.Context(), function.Function{Name: name, Command: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(made)
		if err != nil {
			t.Fatal(err)
		}
		generations = append(generations, data)
	}
	a, b, c := generations[0], generations[1], generations[2]
	half := c[:len(c)/2]
	for _, step := range []struct {
		name                    string
		current, previous, temp []byte
		want                    string
	}{
		{"the first generation is being written", []byte{}, nil, half, ""},
		{"a new generation is created", b, a, []byte{}, "ab"},
		{"a new generation is being written", b, a, half, "ab"},
		{"a new generation is complete", b, a, c, "ab"},
		{"the previous generation is removed", b, nil, c, "ab"},
		{"the current generation is the previous one too", b, b, c, "ab"},
		{"the new generation is the current one", c, b, nil, "abc"},
	} {
		t.Run(step.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			for file, data := range map[string][]byte{path: step.current, path + ".previous": step.previous, path + ".new": step.temp} {
				if data == nil {
					continue
				}
				if err := os.WriteFile(file, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			db := bolt.Open(path, func(format string, args ...any) { t.Errorf(format, args...) })
			want := func(want string) {
				t.Helper()
				l, err := db.List(t.Context())
				got := ""
				for _, fn := range l.Functions {
					got += fn.Name
				}
				if err != nil || got != want {
					t.Errorf("functions %q, %v; want %q", got, err, want)
				}
			}
			want(step.want)
			if err := db.Apply(t.Context(), function.Function{Name: "z", Command: []string{"x"}}); err != nil {
				t.Fatal(err)
			}
			want(step.want + "z")
			if step.want == "" {
				wantFiles(t, path, "state.db")
			} else {
				wantFiles(t, path, "state.db", "state.db.previous")
			}
		})
	}
}
