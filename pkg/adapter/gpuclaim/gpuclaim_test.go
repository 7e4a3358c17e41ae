package gpuclaim

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// As a child, the test binary acts as another user's daemon: it claims the named GPU until
// its standard input ends.
func TestMain(m *testing.M) {
	if name := os.Getenv("GPUCLAIM_TEST"); name != "" {
		fmt.Println(New("/run/theirs").Claim(name) == nil)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

func TestClaim(t *testing.T) {
	t.Setenv("GFAAS_SIM_DIR", t.TempDir())
	mine, other := New("/run/mine"), New("/run/other")
	defer other.Close()
	for range 2 { // the holder may claim it again
		if o := mine.Claim("sim"); o != nil {
			t.Fatalf("first claim: got the holder %v, want none", o)
		}
	}
	for name, want := range map[string]bool{"sim": true, "sim:0": true, "sim:1": false} {
		o := other.Claim(name)
		if (o != nil) != want {
			t.Errorf("claim of %s: got the holder %v, want one: %v", name, o, want)
		}
		if o != nil && (o.UID != os.Geteuid() || o.PID != os.Getpid() || o.RunDir != "/run/mine" || !strings.Contains(o.String(), "set GFAAS_RUN_DIR=/run/mine")) {
			t.Errorf("holder of %s: got %+v (%v), want this process in /run/mine", name, *o, o)
		}
	}
	t.Run("another simulated machine", func(t *testing.T) {
		t.Setenv("GFAAS_SIM_DIR", t.TempDir())
		if o := other.Claim("sim"); o != nil {
			t.Errorf("claim on another simulated machine: got the holder %v, want none", o)
		}
	})
	mine.Close()
	if o := other.Claim("sim"); o != nil {
		t.Errorf("claim after the first holder's release: got the holder %v, want none", o)
	}
}

// TestSquatted checks that any program can hold a claim, and is reported.
func TestSquatted(t *testing.T) {
	t.Setenv("GFAAS_SIM_DIR", t.TempDir())
	for text, want := range map[string]string{
		"/run/x\n": "in /run/x:", "": "gives no run directory", "/run/x": "gives no run directory", "relative\n": "gives no run directory",
		"/run/x; rm -rf ~\n": "gives no run directory", "/run/\x1b[2J\n": "gives no run directory", "/" + strings.Repeat("x", 4096) + "\n": "gives no run directory",
	} {
		key, err := address("sim")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", key)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, _ = io.WriteString(conn, text)
				_ = conn.Close()
			}
		}()
		c := New("/run/mine")
		if o := c.Claim("sim"); o == nil || !strings.Contains(o.String(), want) || o.PID != os.Getpid() {
			t.Errorf("%q: %v, want %q", text, o, want)
		}
		c.Close()
		_ = l.Close()
	}
}

// TestAnotherUser checks that the kernel reports the user of the claim's holder.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be another user")
	}
	self, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	const name = "sim:977" // not used by other tests
	t.Setenv("GFAAS_SIM_DIR", "/dev/shm/gfaas-claim-test")
	cmd.Env, cmd.Dir = append(os.Environ(), "GPUCLAIM_TEST="+name), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 40402, Gid: 40402}, Pdeathsig: syscall.SIGKILL}
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
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	var took bool
	if _, err := fmt.Fscan(out, &took); err != nil || !took {
		t.Fatalf("claim by another user: got %v, %v; want true", took, err)
	}
	o := New("/run/mine").Claim(name)
	if o == nil || o.UID != 40402 || o.PID != cmd.Process.Pid || !strings.Contains(o.String(), "of user 40402, in /run/theirs") ||
		!strings.Contains(o.String(), "sudo -u '#40402' gfaas run") {
		t.Errorf("holder: got %+v, want process %d of user 40402, in /run/theirs", o, cmd.Process.Pid)
	}
}
