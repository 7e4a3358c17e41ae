package hooktest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// tenth is a tenth of the GPU's time.
var tenth = gpu.Slice{SMPct: 100, QuotaRequest: 0.1, QuotaLimit: 0.1}

// unmanaged returns the daemon's report on an instance's unmanaged programs.
func (h *host) unmanaged(id string) string {
	for _, g := range h.status().GPUs {
		for _, c := range g.Clients {
			if c.Instance == id {
				return c.UnmanagedPrograms
			}
		}
	}
	return ""
}

// TestStartedProgramsStayInSlice starts a saturating program in each supported way, with an
// emptied environment. The program is in the slice all the same, and the daemon knows it.
func TestStartedProgramsStayInSlice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, variant := range []string{
		"execve", "execv", "execvp", "execvpe", "execl", "execle", "execlp", "fexecve", "execveat",
		"posix_spawn", "posix_spawnp", "fork", "vfork", "system", "popen",
	} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register(variant, tenth), "check/starts", variant, "/bin/sh", "-c", filepath.Join(build, "victim/saturate")+" 1")
			if err := p.wait(); err != nil {
				t.Fatal(err)
			}
			var output struct{ Share float64 }
			if err := json.Unmarshal([]byte(p.out.String()), &output); err != nil {
				t.Fatalf("parse the program's report: %v: %s", err, p.out.String())
			}
			if output.Share > 0.5 {
				t.Errorf("share of the GPU with a quota of 0.1: got %.2f, want at most 0.5", output.Share)
			}
			h.eventually("the daemon reports a program that was put back into the slice", func() bool { return strings.Contains(h.unmanaged(variant), "put back into the slice") })
			if n := strings.Count(p.errout.String(), "without the preload library"); n != 1 {
				t.Errorf("messages about a start without the library: got %d, want 1: %s", n, p.errout.String())
			}
		})
	}
}

// TestStartedProgramsKeepEnvironment examines the environment of a program that was started
// with another environment: removed variables of the library are restored, and given ones are
// unchanged.
func TestStartedProgramsKeepEnvironment(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	env := append(h.register("keeps", tenth), "CUDA_MPS_PIPE_DIRECTORY=/pipes")
	hook, sim := filepath.Join(build, "lib/libgfaas.so"), filepath.Join(build, "lib/sim")
	for _, tt := range []struct {
		name  string
		given []string
		want  map[string]string // in the program's environment; the identity is always checked
		lacks string
	}{
		{"nothing", []string{"-i"}, map[string]string{
			"LD_PRELOAD": hook, "LD_LIBRARY_PATH": sim, "CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": "/pipes",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "GFAAS_SIM_DIR": filepath.Join(h.runDir, "sim"),
		}, "HOME"},
		{"its own libraries", []string{"-i", "LD_PRELOAD=libc.so.6 libm.so.6", "LD_LIBRARY_PATH=/nowhere"}, map[string]string{
			"LD_PRELOAD": hook + ":libc.so.6 libm.so.6", "LD_LIBRARY_PATH": sim + ":/nowhere",
		}, ""},
		{"ours behind its own", []string{"LD_PRELOAD=libm.so.6 " + hook}, map[string]string{"LD_PRELOAD": "libm.so.6 " + hook}, ""},
		{"behind the C library", []string{"LD_PRELOAD=libc.so.6 " + hook}, map[string]string{"LD_PRELOAD": "libc.so.6 " + hook}, ""},
		{"fewer devices", []string{"CUDA_VISIBLE_DEVICES="}, map[string]string{"CUDA_VISIBLE_DEVICES": ""}, ""},
		{"no library", []string{"-u", "LD_PRELOAD"}, map[string]string{"LD_PRELOAD": hook}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := h.within(t)
			p := h.launch(exec.Command("/usr/bin/env", append(tt.given, "/usr/bin/env")...), env)
			if err := p.wait(); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for line := range strings.Lines(p.out.String()) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
				if _, twice := got[name]; twice {
					t.Errorf("environment of the started program: got %s twice, want once", name)
				}
				got[name] = value
			}
			for _, name := range []string{"GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET"} {
				if got[name] == "" {
					t.Errorf("environment of the started program: got no %s, want it", name)
				}
			}
			for name, want := range tt.want {
				if value, ok := got[name]; !ok || value != want {
					t.Errorf("%s is %q, want %q", name, value, want)
				}
			}
			if _, there := got[tt.lacks]; there {
				t.Errorf("environment of the started program: got %s, want it removed", tt.lacks)
			}
		})
	}
}

// TestUnmanagedPrograms starts programs that the library cannot be in. The instance prints one
// message for each kind, and none if standard error could be read as the program's
// output.
func TestUnmanagedPrograms(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	dir := t.TempDir()
	static, setuid, script := filepath.Join(dir, "static"), filepath.Join(dir, "setuid"), filepath.Join(dir, "script")
	instancetest.Compile(t, static, []byte("int main(void) { return 0; }"), "-static")
	instancetest.Compile(t, setuid, []byte("int main(void) { return 0; }"))
	if err := os.WriteFile(script, []byte("#!"+static+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{static: "statically linked", script: "statically linked"}
	if os.Getuid() == 0 {
		kinds[setuid] = "setuid or setgid"
		if err := os.Chown(setuid, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Log("no setuid program of another user's can be made: run as root to have one tried")
	}
	for program, kind := range kinds {
		t.Run(filepath.Base(program), func(t *testing.T) {
			h := h.within(t)
			id := filepath.Base(program)
			env := h.register(id, tenth)
			quiet := h.launch(exec.Command("/bin/sh", "-c", program+" 2>&1; true"), env)
			if err := quiet.wait(); err != nil || quiet.out.String() != "" {
				t.Errorf("program whose standard error is its output: got %v with %q, want success without a message", err, quiet.out.String())
			}
			for try := 1; !h.checkSingleMessage(fmt.Sprintf("%s-loud-%d", id, try), program, kind); try++ {
				if try == 20 {
					t.Fatalf("message about the unmanaged program: the daemon answered too late in %d runs, want one run in time", try)
				}
			}
		})
	}
}

// checkSingleMessage starts an unmanaged program three times and checks that one message is
// printed: each start waits for the daemon to answer whether it is the first. It
// returns false if the daemon may have answered too late.
func (h *host) checkSingleMessage(id, program, kind string) bool {
	h.t.Helper()
	const patience = 200 * time.Millisecond // ANSWER_MS of unmanaged.c
	started := time.Now()
	p := h.launch(exec.Command("/bin/sh", "-c", program+"; "+program+"; sh -c "+program+"; true"), h.register(id, tenth))
	if err := p.wait(); err != nil {
		h.t.Fatal(err)
	}
	elapsed, output := time.Since(started), p.errout.String()
	h.eventually("the daemon reports three unmanaged programs", func() bool { return strings.HasPrefix(h.unmanaged(id), "3 outside the slice, "+kind) })
	n := strings.Count(output, kind)
	if n > 1 && elapsed > patience {
		h.t.Logf("the daemon did not answer in time: got %[2]d messages in %[1]v", elapsed, n)
		return false
	}
	if n != 1 || strings.Count(output, "\n") != 1 {
		h.t.Errorf("messages about the unmanaged program: got %d, want 1 line: %s", n, output)
	}
	return true
}

// TestSecretShown searches for the secret in the data that other processes of the same
// user can read. The process and the programs that it starts have the secret, but it is
// masked in /proc.
func TestSecretShown(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	const script = `env | grep ^GFAAS_SECRET; tr '\0' '\n' </proc/$$/environ | grep ^GFAAS_SECRET`
	p := h.launch(exec.Command("/bin/sh", "-c", script), h.register("shown", tenth))
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	if got := p.out.String(); !regexp.MustCompile(`^GFAAS_SECRET=[0-9a-f]{48}\nGFAAS_SECRET=\*{48}\n$`).MatchString(got) {
		t.Errorf("secret in the environment and in /proc: want it plain, then masked, got\n%s", got)
	}
}
