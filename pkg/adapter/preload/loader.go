package preload

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/owndir"
)

// CheckLoads calls CheckProgram and then verifies with the program's own loader that it
// would load the preload library. If the loader cannot load the library, it only prints a
// warning, and the program would run without limits.
func CheckLoads(ctx context.Context, command, hook string) error {
	answer, err := AskLoader(ctx, command, hook, "")
	if err != nil {
		return err
	}
	return answer()
}

// AskLoader starts CheckLoads and returns a function that waits for its result; the caller
// must call the function. A positive result is cached in the run directory, since the
// loader takes as long as starting a program. There is no cache if runDir is empty or
// belongs to another user.
func AskLoader(ctx context.Context, command, hook, runDir string) (answer func() error, err error) {
	program, err := resolve(host{}, command)
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close()
	c := newLoaderCache(f, hook, runDir)
	if c.valid() {
		return func() error { return nil }, nil
	}
	// LD_TRACE_LOADED_OBJECTS lists the libraries, as in ldd. The loader's --list fails if
	// any library of the program is missing, such as the simulated driver.
	env := []string{"LD_TRACE_LOADED_OBJECTS=1", "LD_PRELOAD=" + hook}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LD_") {
			env = append(env, v)
		}
	}
	var output bytes.Buffer
	cmd := exec.Command(programLoader(f), program)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &output, &output
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run the loader of %s: %w", program, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the list shows whether the library was loaded
	}()
	return func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			err := checkLoaderList(program, hook, output.String())
			if err == nil {
				c.write()
			}
			return err
		}
	}, nil
}

// loaderCache is a cached positive result: a file in the run directory with the identities of
// the loader, the preload library and the system's library cache.
type loaderCache struct{ runDir, files string }

const loaderCacheFile = "loads"

// newLoaderCache returns the cache entry that applies to a program. It returns the zero loaderCache,
// which is never valid or written, for a program with an RPATH or RUNPATH, since its result
// may differ from that of other programs.
func newLoaderCache(f *elf.File, hook, runDir string) loaderCache {
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if folders, err := f.DynString(tag); err != nil || len(folders) > 0 {
			return loaderCache{}
		}
	}
	var files strings.Builder
	for _, path := range []string{programLoader(f), hook, "/etc/ld.so.cache"} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return loaderCache{}
		}
		fmt.Fprintf(&files, "%s %d:%d %d %d.%09d\n", path, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return loaderCache{runDir, files.String()}
}

// valid reports whether the cached result applies.
func (c loaderCache) valid() bool {
	if c.runDir == "" {
		return false
	}
	dir, err := owndir.Open(c.runDir)
	if err != nil {
		return false
	}
	defer dir.Close()
	text, err := dir.ReadFile(loaderCacheFile)
	return err == nil && string(text) == c.files
}

// write writes the cache. If that fails or is incomplete, the next check calls the loader
// again.
func (c loaderCache) write() {
	if c.runDir == "" {
		return
	}
	if dir, err := owndir.Open(c.runDir); err == nil {
		_ = dir.WriteFile(loaderCacheFile, []byte(c.files), 0o600)
		_ = dir.Close()
	}
}

// checkLoaderList returns an error unless the loader's list of libraries contains the preload
// library.
func checkLoaderList(program, hook, output string) error {
	if strings.Contains(output, hook+" (") {
		return nil
	}
	line, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	if line == "" {
		line = "its loader prints nothing"
	}
	return &ProgramError{program, "does not load the preload library: " + line, "rebuild the libraries of gfaas for this machine: make"}
}
