package preload_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// If the loader cannot load the library, it only warns; CheckLoads fails, since the program
// would run without limits.
func TestCheckLoads(t *testing.T) {
	hook, _ := instancetest.BuildLibs(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Linked with a driver that is found only at run time.
	driver, linked := filepath.Join(t.TempDir(), "libcuda.so.1"), filepath.Join(t.TempDir(), "linked")
	instancetest.Compile(t, driver, []byte("int cuInit(unsigned f) { return (int)f; }"), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
	instancetest.Compile(t, linked, []byte("int cuInit(unsigned); int main(void) { return cuInit(0); }"), driver)
	for _, command := range []string{"sleep", "/bin/sh", script, linked} {
		if err := preload.CheckLoads(t.Context(), command, hook); err != nil {
			t.Errorf("CheckLoads of %s: got the error %v, want none", command, err)
		}
	}
	junk := filepath.Join(t.TempDir(), "libgfaas.so")
	if err := os.WriteFile(junk, []byte("half a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, lib := range map[string]string{"junk": junk, "missing": junk + ".gone"} {
		err := preload.CheckLoads(t.Context(), "sleep", lib)
		var refused *preload.ProgramError
		if !errors.As(err, &refused) || !refused.Unavailable() || !strings.Contains(err.Error(), "sleep") {
			t.Errorf("%s: %v, want that sleep is refused", name, err)
		}
	}
}

// A positive answer of the loader is cached until one of the files involved changes. The
// caller waits for the answer unless its context has ended.
func TestLoaderIsQueriedOnce(t *testing.T) {
	built, _ := instancetest.BuildLibs(t)
	runDir, hook := t.TempDir(), filepath.Join(t.TempDir(), "libgfaas.so")
	if err := os.Chmod(runDir, 0o700); err != nil {
		t.Fatal(err)
	}
	library, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	put := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(hook+".new", content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(hook+".new", hook); err != nil {
			t.Fatal(err)
		}
	}
	checkLoader := func(ctx context.Context, command string) error {
		t.Helper()
		answer, err := preload.AskLoader(ctx, command, hook, runDir)
		if err != nil {
			t.Fatal(err)
		}
		return answer()
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	expectQuery := func(what, command string, want bool) {
		t.Helper()
		// If the answer has arrived and the context has ended, either result is valid.
		for range 20 {
			if err := checkLoader(cancelled, command); err != nil && want {
				return
			} else if err != nil {
				t.Errorf("%s: the loader is queried, want the stored answer", what)
				return
			}
		}
		if want {
			t.Errorf("%s: the loader is not queried, want it queried", what)
		}
	}
	folders := filepath.Join(t.TempDir(), "folders")
	instancetest.Compile(t, folders, []byte("int main(void) { return 0; }"), "-Wl,-rpath,/nowhere")

	put(library)
	if err := checkLoader(t.Context(), "sleep"); err != nil {
		t.Fatal(err)
	}
	expectQuery("second query", "sleep", false)
	expectQuery("another program", "/bin/sh", false)
	expectQuery("a program with folders of its own", folders, true)

	put([]byte("half a library"))
	if err := checkLoader(t.Context(), "sleep"); err == nil {
		t.Error("library that cannot be loaded, in place of a valid one: got no error, want one")
	}
	put(library)
	for _, command := range []string{folders, "/bin/sh"} {
		if err := checkLoader(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	expectQuery("a program with folders of its own, again", folders, true)
	expectQuery("after a new library", "sleep", false)
	if err := os.Chmod(runDir, 0o777); err != nil {
		t.Fatal(err)
	}
	expectQuery("a run directory that others can write to", "sleep", true)
}

func TestHooked(t *testing.T) {
	hook, _ := instancetest.BuildLibs(t)
	for _, want := range []bool{true, false} {
		cmd := exec.Command("cat")
		if want {
			cmd.Env = append(os.Environ(), "LD_PRELOAD="+hook)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The echo shows that the loader has finished.
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if hooked, known := preload.Hooked(cmd.Process.Pid); !known || hooked != want {
			t.Errorf("process with the library %v: got hooked %v, known %v; want hooked %v, known true", want, hooked, known, want)
		}
		_ = in.Close()
		_ = cmd.Wait()
	}
	if _, known := preload.Hooked(1 << 30); known {
		t.Error("Hooked of a missing process: got known true, want false")
	}
}
