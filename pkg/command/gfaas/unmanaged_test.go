package gfaas

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// escape implements the program escape HOW PROGRAM ARGS…, which starts a program like Go programs do: with the system
// call and with a new environment. The environment contains the settings of the simulated driver, but not the slice.
func escape() {
	how, command := os.Args[1], os.Args[2:]
	var env []string
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); name == "LD_LIBRARY_PATH" || strings.HasPrefix(name, "GFAAS_SIM_") || name == "PATH" {
			env = append(env, entry)
		}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
	var err error
	switch how {
	case "execs": // like env -i, with the system call
		err = syscall.Exec(command[0], command, env)
	case "beside": // PROGRAM ARGS… -- OTHER: starts PROGRAM and becomes OTHER
		at := slices.Index(command, "--")
		cmd.Args = command[:at]
		if err = cmd.Start(); err == nil {
			err = syscall.Exec(command[at+1], command[at+1:], os.Environ())
		}
	case "leaves":
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err = cmd.Start(); err == nil {
			fmt.Println(cmd.Process.Pid)
		}
	case "twice": // the parent ends, as for a daemon
		child := exec.Command("/proc/self/exe", append([]string{"leaves"}, command...)...)
		child.Args[0] = "escape" // selects this function in the test binary
		child.Env, child.Stdout, child.Stderr = env, os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err = child.Run(); err == nil {
			time.Sleep(time.Hour)
		}
	default:
		err = cmd.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "escape:", err)
		os.Exit(1)
	}
}

// staticSource is a launcher without a C library's execve, which the preload library could intercept.
const staticSource = `
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char *argv[]) {
	char *env[16] = {NULL};
	int n = 0;
	for (char **e = environ; *e && n < 15; e++)
		if (!strncmp(*e, "LD_LIBRARY_PATH=", 16) || !strncmp(*e, "GFAAS_SIM_", 10))
			env[n++] = *e;
	if (fork() == 0) {
		execve(argv[1], argv + 1, env);
		_exit(1);
	}
	wait(NULL);
	return 0;
}`

// unmanagedIn returns the unmanaged processes of an instance from gfaas-tokend status.
func unmanagedIn(t *testing.T, env []string, instance string) (pids []int) {
	t.Helper()
	cmd := exec.Command("gfaas-tokend", "status", "-o", "csv")
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.Output()
	if err != nil {
		return nil // no daemon runs yet
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if pid, _ := strconv.Atoi(row[3]); row[1] == instance && row[9] == "unmanaged" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestUnmanagedOfRun checks that a program which a command starts without the library is found, reported and, on request,
// killed, in whichever way it was started.
func TestUnmanagedOfRun(t *testing.T) {
	t.Parallel()
	w := build(t)
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(libs, "..", "victim", "loop")
	static := filepath.Join(t.TempDir(), "launcher")
	instancetest.Compile(t, static, []byte(staticSource), "-static")
	endless := []string{loop, "1000000000", "100"}
	for name, command := range map[string][]string{
		"a Go program with c.Env":              append([]string{"escape", "env"}, endless...),
		"a Go program that becomes it":         append([]string{"escape", "execs"}, endless...),
		"a daemon, by two forks and a session": append([]string{"escape", "twice"}, endless...),
		"a static launcher":                    append([]string{"sh", "-c", `"$@"; :`, "sh", static}, endless...),
	} {
		for _, stop := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stop %v", name, stop), func(t *testing.T) {
				t.Parallel()
				dir, err := os.MkdirTemp("", "unmanaged")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.RemoveAll(dir) })
				env := append(w.environ(dir), "GFAAS_LIB_DIR="+libs)
				args := []string{"run", "--gpu", "sim", "--name", "a"}
				if stop {
					args = append(args, "--stop-unmanaged")
				}
				cmd := exec.Command("gfaas", append(append(args, "--"), command...)...)
				cmd.Env = append(os.Environ(), env...)
				errs, err := os.Create(filepath.Join(dir, "stderr"))
				if err != nil {
					t.Fatal(err)
				}
				defer errs.Close()
				cmd.Stderr = errs
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				pid := 0
				t.Cleanup(func() {
					_ = cmd.Process.Kill()
					<-ended
					if pid > 0 {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
				})
				stderr := func() string {
					text, err := os.ReadFile(errs.Name())
					if err != nil {
						t.Fatal(err)
					}
					return string(text)
				}
				eventually(t, "gfaas run reports the unmanaged process", func() bool { return strings.Contains(stderr(), "gfaas: warning: process ") })
				_, rest, _ := strings.Cut(stderr(), "gfaas: warning: process ")
				if _, err := fmt.Sscan(rest, &pid); err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("%d (%s) ", pid, loop); !strings.HasPrefix(rest, want) {
					t.Errorf("reported process: got %q, want %q", rest, want)
				}
				switch {
				case stop:
					if !strings.Contains(rest, "was stopped") {
						t.Errorf(`report of the process: got %q, want "was stopped" in it`, rest)
					}
					eventually(t, "the unmanaged process has ended", func() bool { return !procfs.Alive(pid) })
				default:
					if !strings.Contains(rest, "nothing limits it") || !procfs.Alive(pid) {
						t.Errorf("report of the process: got %q (alive: %v), want \"nothing limits it\" in it and a running process", rest, procfs.Alive(pid))
					}
					if got := unmanagedIn(t, env, "a"); len(got) != 1 || got[0] != pid {
						t.Errorf("unmanaged processes in the status: got %v, want %d", got, pid)
					}
				}
				if n := strings.Count(stderr(), "gfaas: warning: process"); n != 1 {
					t.Errorf("warnings about unmanaged processes: got %d, want 1: %s", n, stderr())
				}
			})
		}
	}
}

// TestUnmanagedAfterTheCommand checks that unmanaged processes are found even after the command has ended. The instance
// lives on as long as one of its unmanaged processes.
func TestUnmanagedAfterTheCommand(t *testing.T) {
	t.Parallel()
	w := build(t)
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop %v", stop), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "unmanaged")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			env := append(w.environ(dir), "GFAAS_LIB_DIR="+libs)
			out, err := os.Create(filepath.Join(dir, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			cmd := exec.Command("gfaas", "run", "-q", "--gpu", "sim", "--name", "a", fmt.Sprintf("--stop-unmanaged=%v", stop), "--",
				"escape", "leaves", filepath.Join(libs, "..", "victim", "loop"), "1000000000", "100")
			cmd.Env, cmd.Stdout = append(os.Environ(), env...), out
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
			if stop {
				eventually(t, "the unmanaged process has ended", func() bool { return !procfs.Alive(pid) })
				return
			}
			eventually(t, "the status shows the unmanaged process", func() bool { got := unmanagedIn(t, env, "a"); return len(got) == 1 && got[0] == pid })
		})
	}
}

// TestUnmanagedOfUp checks that unmanaged processes of an instance from gfaas up are in its log and in gfaas ps. With
// unmanaged: stop they are killed.
func TestUnmanagedOfUp(t *testing.T) {
	t.Parallel()
	w := build(t)
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	escape, err := exec.LookPath("escape")
	if err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(libs, "..", "victim", "loop")
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop %v", stop), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "unmanaged")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			env := append(w.environ(dir), "GFAAS_LIB_DIR="+libs)
			description := "report"
			if stop {
				description = "stop"
			}
			for name, text := range map[string]string{
				"f.yaml":    fmt.Sprintf("name: echo\ncommand: [sh, -c, '%s env %s 1000000000 100 & exec %s']\ncontract: http\nunmanaged: %s\n", escape, loop, w.function, description),
				"plan.json": planOf("echo-0"),
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			run := func(args ...string) string {
				cmd := exec.Command("gfaas", args...)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
				text, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("gfaas %v: %v\n%s", args, err, text)
				}
				return string(text)
			}
			run("apply", "-f", "f.yaml")
			run("up", "plan.json", "--gpu", "sim")
			pid := 0
			t.Cleanup(func() {
				down(env)
				if pid > 0 {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			})
			eventually(t, "the log reports the unmanaged process", func() bool { return strings.Contains(run("logs", "echo"), "gfaas: process ") })
			log := run("logs", "echo")
			_, rest, _ := strings.Cut(log, "gfaas: process ")
			if _, err := fmt.Sscan(rest, &pid); err != nil {
				t.Fatal(err)
			}
			if strings.Count(log, "gfaas: process ") != 1 || !strings.HasPrefix(rest, fmt.Sprintf("%d (%s) ", pid, loop)) {
				t.Errorf("log of echo: got %q, want one report of process %d (%s)", log, pid, loop)
			}
			if stop {
				eventually(t, "the unmanaged process has ended", func() bool { return !procfs.Alive(pid) })
				return
			}
			if text := run("ps", "-o", "json"); !strings.Contains(strings.Join(strings.Fields(text), ""), fmt.Sprintf(`"unmanaged":[%d]`, pid)) {
				t.Errorf("gfaas ps -o json: got %s, want %d as the unmanaged process", text, pid)
			}
			if text := run("ps"); !strings.Contains(text, "UNMANAGED") || !strings.Contains(text, strconv.Itoa(pid)) {
				t.Errorf("gfaas ps: got %s, want %d under UNMANAGED", text, pid)
			}
		})
	}
}

// importEscape creates an image with a function, the program escape, and a program that uses the GPU. If own is not empty,
// the image itself preloads that library.
func importEscape(t *testing.T, p *environment, loop, own string) (image string) {
	t.Helper()
	escape, err := exec.LookPath("escape")
	if err != nil {
		t.Fatal(err)
	}
	script := `set -e
copy() { mkdir -p "$1$(dirname "$2")" && cp -L "$2" "$1$2"; }
for lib in $(ldd "$FUNCTION" "$ESCAPE" "$LOOP" "$LIBRARIES"/*.so | grep -o '/[^ )]*\.so[^ ):]*'); do case $lib in "$LIBRARIES"*) ;; *) copy "$1" "$lib" ;; esac; done
cp "$FUNCTION" "$1/function"; cp -L "$ESCAPE" "$1/escape"; cp "$LOOP" "$1/loop"
mkdir "$1/tmp" "$1/dev"
if [ "$OWN" ]; then mkdir -p "$1/etc"; cp "$OWN" "$1/own.so"; printf '# ours\n/own.so' >"$1/etc/ld.so.preload"; fi
tar -C "$1" -c . | docker import --change 'ENV HOST=0.0.0.0' --change 'CMD ["/escape", "beside", "/loop", "1000000000", "100", "--", "/function"]' - "$2"`
	image = "gfaas-test-" + preload.NewSecret()[:12]
	cmd := exec.Command("sh", "-c", script, "sh", t.TempDir(), image)
	cmd.Env = append(os.Environ(), "FUNCTION="+p.getenv("FUNCTION"), "ESCAPE="+escape, "LOOP="+loop, "OWN="+own, "LIBRARIES="+p.getenv("GFAAS_LIB_DIR"))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("import an image: %v\n%s", err, text)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", image).Run() })
	t.Cleanup(func() { down(p.env) })
	return image
}

// TestContainerKeepsItsSlice checks that in a container, a program with a new environment still loads the library and
// stays in the slice. Libraries that the image preloads are loaded as well.
func TestContainerKeepsItsSlice(t *testing.T) {
	t.Parallel()
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	ownLibrary := filepath.Join(t.TempDir(), "own.so")
	instancetest.Compile(t, ownLibrary, []byte(`#include <unistd.h>
__attribute__((constructor)) static void begin(void) { if (write(2, "own library\n", 12) < 0) _exit(1); }`), "-shared", "-fPIC")
	for name, c := range map[string]struct{ own, more string }{
		"an image":                        {"", ""},
		"an image with a list of its own": {ownLibrary, ""},
		"a root that is only read":        {"", ", read_only: true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newDockerEnvironment(t)
			p.env = append(p.env, "GFAAS_LIB_DIR="+libs)
			image := importEscape(t, p, filepath.Join(libs, "..", "victim", "loop"), c.own)
			p.write("f.yaml", "{name: boxed, image: "+image+c.more+"}\n")
			p.output("apply", "-f", "f.yaml")
			p.write("plan.json", planOf("boxed-0"))
			p.output("up", "plan.json", "--gpu", "sim")
			eventually(t, "the program with another environment launches kernels in the slice", func() bool {
				cmd := exec.Command("gfaas-tokend", "status", "-o", "csv")
				cmd.Env = append(os.Environ(), p.env...)
				text, err := cmd.Output()
				if err != nil {
					t.Fatal(err)
				}
				rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
				if err != nil || len(rows) < 2 {
					t.Fatalf("decode the status: got %s, %v; want at least two rows", text, err)
				}
				if strings.Contains(string(text), "unmanaged") {
					t.Fatalf("status: got\n%swant no unmanaged process", text)
				}
				return slices.ContainsFunc(rows[1:], func(row []string) bool { launches, _ := strconv.Atoi(row[12]); return launches > 0 })
			})
			if log := p.output("logs", "boxed"); (c.own != "") != strings.Contains(log, "own library") || strings.Contains(log, "cannot be preloaded") {
				t.Errorf("log of boxed: got %q, want the message of the image's own library (only if it has one: %v) and no failed preload", log, c.own != "")
			}
			p.output("down")
			p.checkNothingRemains()
		})
	}
}
