package preload

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/owndir"
)

// CheckLoads is CheckProgram, and asks the program's own loader whether it
// would put the preload library into it: a library that it cannot load costs
// no more than a warning, and the program would run without limits.
func CheckLoads(ctx context.Context, command, hook string) error {
	answer, err := AskLoader(ctx, command, hook, "")
	if err != nil {
		return err
	}
	return answer()
}

// AskLoader is CheckLoads for who has other things to do while the loader thinks:
// answer, which must be called, waits for what it says. That a loader said yes is
// remembered in the run directory, for asking it takes as long as starting a
// program. Where there is none, or it is not the user's own, it is asked each time.
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
	c := newConsent(f, hook, runDir)
	if c.given() {
		return func() error { return nil }, nil
	}
	// Traced as ldd does, it lists; under --list it gives up at a library of the
	// program's that is not on this machine, like the simulated driver.
	env := []string{"LD_TRACE_LOADED_OBJECTS=1", "LD_PRELOAD=" + hook}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LD_") {
			env = append(env, v)
		}
	}
	said, err := output([]string{programLoader(f), program}, env)
	if err != nil {
		return nil, fmt.Errorf("ask the loader of %s: %w", program, err)
	}
	return func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case text := <-said:
			err := loaderSays(program, hook, text)
			if err == nil {
				c.keep()
			}
			return err
		}
	}, nil
}

// consent is that a loader loads the preload library into programs: a file in the
// run directory with what the loader, the library and the index of the system's
// libraries were when it said so.
type consent struct{ runDir, files string }

const consentFile = "loads"

// newConsent asks for what holds for a program. It is the zero consent, which is
// never given and never kept, for one that names folders of its own for its
// libraries: there the answer may be another than for the rest.
func newConsent(f *elf.File, hook, runDir string) consent {
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if folders, err := f.DynString(tag); err != nil || len(folders) > 0 {
			return consent{}
		}
	}
	var files strings.Builder
	for _, path := range []string{programLoader(f), hook, "/etc/ld.so.cache"} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return consent{}
		}
		fmt.Fprintf(&files, "%s %d:%d %d %d.%09d\n", path, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return consent{runDir, files.String()}
}

// given tells whether the loader has said yes before.
func (c consent) given() bool {
	if c.runDir == "" {
		return false
	}
	dir, err := owndir.Open(c.runDir)
	if err != nil {
		return false
	}
	defer dir.Close()
	text, err := dir.ReadFile(consentFile)
	return err == nil && string(text) == c.files
}

// keep remembers it. Where it cannot be written, or half of it was, the next asks again.
func (c consent) keep() {
	if c.runDir == "" {
		return
	}
	if dir, err := owndir.Open(c.runDir); err == nil {
		_ = dir.WriteFile(consentFile, []byte(c.files), 0o600)
		_ = dir.Close()
	}
}

// output starts a program and tells what it has printed, on either stream, once it
// has ended. It is os/exec without what that does before the first program of a
// process, which is to start another.
func output(command, env []string) (said <-chan string, err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(pipe[0], true) // so that no thread waits for it
	out := os.NewFile(uintptr(pipe[0]), "output")
	none, err := os.Open(os.DevNull)
	if err != nil {
		return nil, errors.Join(err, unix.Close(pipe[1]), out.Close())
	}
	pid, err := syscall.ForkExec(command[0], command, &syscall.ProcAttr{
		Env: env, Files: []uintptr{none.Fd(), uintptr(pipe[1]), uintptr(pipe[1])},
	})
	_ = errors.Join(none.Close(), unix.Close(pipe[1]))
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	ended := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(out)
		_ = out.Close()
		for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
			_, err = unix.Wait4(pid, nil, 0, nil)
		}
		ended <- string(text)
	}()
	return ended, nil
}

// loaderSays is what the loader's list of a program's libraries means.
func loaderSays(program, hook, said string) error {
	if strings.Contains(said, hook+" (") {
		return nil
	}
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	if line == "" {
		line = "its loader says nothing"
	}
	return &ProgramError{program, "does not take the preload library: " + line, "build gfaas's libraries anew for this machine: make"}
}
