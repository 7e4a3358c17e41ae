package hooktest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzEnvironment runs a program in arbitrary environments. The program must not crash. The
// library prints each kind of message at most once, on one line, so at most five lines appear.
func FuzzEnvironment(f *testing.F) {
	simDir := f.TempDir()
	long := strings.Repeat("x", 5000)
	f.Add("/run/gfaas/client/token.sock", "a-0", "secret", "", "24")
	f.Add("", "", "", "sms=80,mem=16GiB,count=1", "100")
	f.Add(long, long, long, long, long)
	f.Add("/dev/null", "\x01\xff", "%s%n", "sms=-1,mem=1e99GiB,count=99999999999", "-1")
	f.Add("/", "a", "b", "sms=,,mem==,count", "1e-300")
	f.Add("/\n\n\n\n\n", "\n", "\n", "\n\n\n\x1b[2J\n\n", "\n")
	f.Fuzz(func(t *testing.T, socket, instance, secret, shape, percent string) {
		env := []string{
			"LD_PRELOAD=" + filepath.Join(build, "lib/libgfaas.so"), "LD_LIBRARY_PATH=" + filepath.Join(build, "lib/sim"),
			"GFAAS_SIM_DIR=" + simDir,
		}
		for name, value := range map[string]string{
			"GFAAS_SOCKET": socket, "GFAAS_INSTANCE": instance, "GFAAS_SECRET": secret,
			"GFAAS_SIM_GPU": shape, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
		} {
			if strings.ContainsRune(value, 0) {
				return // no environment can have this
			}
			env = append(env, name+"="+value)
		}
		cmd := exec.Command(filepath.Join(build, "check/environ"))
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if lines := strings.Count(string(out), "\n"); err != nil || lines > 5 {
			t.Fatalf("environment %q: got error %v and %d lines of output, want success and at most 5:\n%s", env, err, lines, out)
		}
	})
}
