package mpstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

const client = `
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void end(int sig) { _exit(0); }
int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "default";
	sigset_t term;
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	if (!strcmp(how, "ignore"))
		signal(SIGTERM, SIG_IGN);
	if (!strcmp(how, "catch"))
		signal(SIGTERM, end);
	if (!strcmp(how, "block"))
		sigprocmask(SIG_BLOCK, &term, NULL);
	puts("ready");
	fflush(stdout);
	if (!strcmp(how, "block")) {
		int sig;
		sigwait(&term, &sig);
		return 0;
	}
	for (;;)
		pause();
}`

// Client compiles a program that loads an empty driver. Its argument selects the effect of
// SIGTERM: default, ignore, catch (it exits), or block (it waits for the signal and exits).
// It prints a line when it is ready.
func Client(t testing.TB) (program string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "client")
	driver := filepath.Join(dir, "libcuda.so.1")
	instancetest.Compile(t, driver, nil, "-shared", "-fPIC")
	instancetest.Compile(t, program, []byte(client), "-Wl,--no-as-needed", driver, "-Wl,-rpath,"+dir)
	return program
}

// Terminated returns the pairs "SERVER CLIENT" of the terminate_client commands that the
// stand-in of a folder received, in order.
func Terminated(t testing.TB, pipeDir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pipeDir, "terminated"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// Start starts the stand-in, which must be on PATH, as the daemon of a folder, with servers
// of the given PIDs. It ends with the test.
func Start(t testing.TB, pipeDir string, servers ...int) {
	t.Helper()
	if err := os.MkdirAll(pipeDir, 0o700); err != nil {
		t.Fatal(err)
	}
	control := func(input string, args ...string) {
		cmd := exec.Command("nvidia-cuda-mps-control", args...)
		cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipeDir)
		cmd.Stdin = strings.NewReader(input)
		cmd.WaitDelay = time.Second // the daemon may keep the output open
		if text, err := cmd.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			t.Errorf("%v: %v: %s", cmd.Args, err, text)
		}
	}
	control("", "-d")
	t.Cleanup(func() {
		_ = os.Remove(filepath.Join(pipeDir, "slow"))
		control("quit\n")
		eventually(t, "the daemon has ended", func() bool {
			_, err := os.Stat(filepath.Join(pipeDir, "nvidia-cuda-mps-control.pid"))
			return os.IsNotExist(err)
		})
	})
	for _, server := range servers {
		if err := os.WriteFile(filepath.Join(pipeDir, fmt.Sprintf("server.%d", server)), []byte("ACTIVE\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Slow makes the stand-in of a folder take the time d for each answer, until the file slow
// in the folder is removed.
func Slow(t testing.TB, pipeDir string, d time.Duration) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(pipeDir, "slow"), fmt.Append(nil, d.Milliseconds()/100), 0o600); err != nil {
		t.Fatal(err)
	}
}
