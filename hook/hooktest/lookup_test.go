package hooktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lookup runs the program that looks up every function, and returns its lines. The
// program finds the driver itself, or opens the driver `late` if there is no other.
func lookup(t *testing.T, late string, env ...string) []string {
	t.Helper()
	cmd := exec.Command(filepath.Join(build, "check/lookup"))
	if late != "" {
		cmd.Args = append(cmd.Args, late)
	}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = &logged{t, "lookup"}
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() == 77 {
		t.Skip("there is a driver where the loader looks")
	}
	if err != nil {
		t.Fatalf("check/lookup with %v: %v", env, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// hidden returns the environment for a driver whose cuGetProcAddress returns addresses
// that it does not export.
func hidden(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(build, "check/plugin/hidden.so"), filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	return []string{"LD_LIBRARY_PATH=" + dir, "HIDDEN_DRIVER=" + filepath.Join(build, "lib/sim/libcuda.so.1")}
}

// TestLookup compares, for every function, twin, CUDA version and stream flavour, the
// results of a program with and without the library. They are the same function, or its
// wrapper if there is one.
func TestLookup(t *testing.T) {
	t.Parallel()
	rows, _ := symbols(t)
	var wrapped []string
	for _, s := range rows {
		if s.wrapped() {
			wrapped = append(wrapped, s.exportedNames()...)
		}
	}
	slices.Sort(wrapped)
	hook := "LD_PRELOAD=" + filepath.Join(build, "lib/libgfaas.so")
	sim := "LD_LIBRARY_PATH=" + filepath.Join(build, "lib/sim")
	bare, hooked := lookup(t, "", sim), lookup(t, "", sim, hook)
	unseen := lookup(t, "", append(hidden(t), hook)...)
	if len(bare) < 10000 || len(bare) != len(hooked) || len(bare) != len(unseen) {
		t.Fatalf("lines of check/lookup: got %d, %d with the library and %d with a driver that hides its functions; want equal numbers of at least 10000", len(bare), len(hooked), len(unseen))
	}
	found := map[string]bool{}
	for i, line := range bare {
		how, name, ok := strings.Cut(line, " libcuda.so.1 ")
		if !ok { // no such function exists
			if hooked[i] != line {
				t.Fatalf("missing function: got %q with the library, want %q as without it", hooked[i], line)
			}
			continue
		}
		name, status, _ := strings.Cut(name, " ")
		found[name] = true
		want, wantUnseen := line, line
		if _, mine := slices.BinarySearch(wrapped, name); mine {
			want = strings.Replace(line, " libcuda.so.1 ", " libgfaas.so ", 1)
			wantUnseen = want
		} else if !strings.HasPrefix(line, "dlsym") {
			wantUnseen = strings.TrimSpace(how + " libcuda.so.1 hidden " + status)
		}
		if hooked[i] != want {
			t.Fatalf("function with the library: got %q, want %q", hooked[i], want)
		}
		if unseen[i] != wantUnseen {
			t.Fatalf("function of a driver that hides its functions: got %q, want %q", unseen[i], wantUnseen)
		}
	}
	for _, s := range rows {
		for _, name := range s.exportedNames() {
			if !found[name] {
				t.Errorf("function %s: got no way to find it, want at least one", name)
			}
		}
	}
}

// TestLookupLate lets a program look for a driver in vain before it opens one by its
// path. The program then finds the same functions as with an early driver.
func TestLookupLate(t *testing.T) {
	t.Parallel()
	hook := "LD_PRELOAD=" + filepath.Join(build, "lib/libgfaas.so")
	sim := filepath.Join(build, "lib/sim")
	want := lookup(t, "", "LD_LIBRARY_PATH="+sim, hook)
	got := lookup(t, filepath.Join(sim, "libcuda.so.1"), "LD_LIBRARY_PATH=", hook)
	for i, line := range want {
		if i >= len(got) || got[i] != line {
			t.Fatalf("line %d of %d and %d is not %q", i, len(want), len(got), line)
		}
	}
}

// TestLookupNew lets a program find a function of the driver that the library does not
// know. The library prints one message.
func TestLookupNew(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cuLaunchTomorrow", "cuLaunchKernel"} {
		cmd := exec.Command(filepath.Join(build, "check/lookup"), name)
		cmd.Env = append(append(os.Environ(), hidden(t)...), "HIDDEN_NEW="+name, "LD_PRELOAD="+filepath.Join(build, "lib/libgfaas.so"))
		output, err := cmd.CombinedOutput()
		want := 0
		if name == "cuLaunchTomorrow" {
			want = 1
		}
		if n := strings.Count(string(output), "libgfaas: "); err != nil || n != want || !strings.Contains(string(output), " "+name) {
			t.Errorf("lookup of %s: got %v and %d messages, want success and %d: %s", name, err, n, want, output)
		}
	}
}

// TestLookupOwner looks up functions in libraries. Functions of the driver and of NVML
// are found as wrappers, and functions of other libraries as themselves.
func TestLookupOwner(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(build, "lib/sim/libcuda.so.1"))
	copied := filepath.Join(t.TempDir(), "copied.so")
	if err := errors.Join(err, os.WriteFile(copied, text, 0o700)); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(build, "check/plugin/own.so")
	for _, tt := range []struct {
		library string
		with    []string // functions, and the libraries that define them
		owners  string
	}{
		{"libcuda.so.1", []string{"cuMemAlloc_v2", "cuLaunchKernel", "cuNone"}, "libgfaas.so libgfaas.so none"},
		{own, []string{"cuMemAlloc_v2", "cuLaunchKernel", "nvmlDeviceGetMemoryInfo"}, "own.so own.so own.so"},
		{own, []string{"cuInit", "cuMemFree_v2"}, "libgfaas.so libgfaas.so"}, // through the driver that it is linked to
		{copied, []string{"cuMemAlloc_v2"}, "libgfaas.so"},
		{"libnvidia-ml.so.1", []string{"nvmlDeviceGetMemoryInfo", "nvmlNone"}, "libgfaas.so none"},
	} {
		cmd := exec.Command(filepath.Join(build, "check/owner"), append([]string{tt.library}, tt.with...)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "LD_PRELOAD="+filepath.Join(build, "lib/libgfaas.so"))
		cmd.Stderr = &logged{t, "owner"}
		out, err := cmd.Output()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != tt.owners {
			t.Errorf("owners in %s of %v: got %q, %v; want %q", filepath.Base(tt.library), tt.with, got, err, tt.owners)
		}
	}
}
