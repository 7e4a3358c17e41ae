package examples_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// profile is a profile of saxpy on the simulated GPU, from gfaas-profile.
const profile = `function,gpu,sm_pct,quota,batch,throughput_rps,p95_ms
saxpy,sim,24,0.6,1,15,600
saxpy,sim,24,1,1,25,320
saxpy,sim,50,0.6,1,30,300
saxpy,sim,50,1,1,50,160
`

// user is a user with a machine and a shell.
type user struct {
	t   *testing.T
	dir string
	env []string
}

func newUser(t *testing.T) *user {
	t.Helper()
	dir, err := os.MkdirTemp("", "gf") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(built(t, "bin", "gfaas"))
	u := &user{t: t, dir: dir, env: append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"), "GFAAS_RUN_DIR="+dir+"/run", "GFAAS_STATE="+dir+"/state.db", "GFAAS_SIM_DIR="+dir+"/sim")}
	t.Cleanup(func() {
		u.try("gfaas", "down", "-q")
		os.RemoveAll(dir)
	})
	return u
}

func (u *user) try(name string, args ...string) (string, error) {
	path := name
	if !strings.Contains(name, "/") {
		path = built(u.t, "bin", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = u.env, u.dir
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func (u *user) do(name string, args ...string) string {
	u.t.Helper()
	text, err := u.try(name, args...)
	if err != nil {
		u.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
	return text
}

// TestMainJob plans from a profile, starts the plan, checks 200 answers and stops the
// plan, with processes and with containers. Nothing may remain.
func TestMainJob(t *testing.T) {
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		mainJob(t, built(t, "examples", "saxpy", "function.yaml"))
	})
	t.Run("docker", func(t *testing.T) {
		t.Parallel()
		if err := exec.Command("docker", "info").Run(); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("no Docker engine answers: %v", err)
			}
			t.Skipf("no Docker engine answers: %v", err)
		}
		mainJob(t, inImage(t))
	})
}

// inImage builds the example's image and returns its function file. The image's name is
// unique on this engine, and the image is removed with the test.
func inImage(t *testing.T) (file string) {
	t.Helper()
	const usual = "image: gfaas-saxpy:latest\n"
	text, err := os.ReadFile(built(t, "examples", "saxpy", "function-docker.yaml"))
	if err != nil || strings.Count(string(text), usual) != 1 {
		t.Fatalf("%v: %q is not once in\n%s", err, usual, text)
	}
	file = filepath.Join(t.TempDir(), "function.yaml")
	name := "gfaas-saxpy:" + preload.NewSecret()[:12]
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), usual, "image: "+name+"\n", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", name).Run() })
	if text, err := exec.Command(built(t, "examples", "saxpy", "image.sh"), name).CombinedOutput(); err != nil {
		t.Fatalf("image: %v\n%s", err, text)
	}
	return file
}

func mainJob(t *testing.T, file string) {
	u := newUser(t)
	for name, text := range map[string]string{"profile.csv": profile, "demand.csv": "function,rps,slo_ms\nsaxpy,70,400\n"} {
		if err := os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	inputs := []string{"--profile", "profile.csv", "--demand", "demand.csv"}
	u.do("gfaas-place", append([]string{"plan", "--gpus", "1", "-q", "-o", "json", "--out-file", "plan.json"}, inputs...)...)
	u.do("gfaas-place", append([]string{"verify", "plan.json"}, inputs...)...)
	u.do("gfaas", "apply", "-f", file)
	u.do("gfaas", "up", "plan.json")
	if answer := u.do(built(t, "examples", "saxpy", "check.sh"), "saxpy", "200"); !strings.Contains(answer, "200 right, 0 wrong") {
		t.Errorf(`answers: %s, want a text with "200 right, 0 wrong"`, answer)
	}
	var instances []struct {
		PID       int    `json:"pid"`
		Container string `json:"container"`
		State     string `json:"state"`
	}
	if err := json.Unmarshal([]byte(u.do("gfaas", "ps", "-o", "json")), &instances); err != nil || len(instances) < 2 {
		t.Fatalf("ps: %v, %+v; want two instances or more", err, instances)
	}
	u.do("gfaas", "down")
	for _, i := range instances {
		if i.PID != 0 && alive(i.PID) {
			t.Errorf("process %d is left", i.PID)
		}
		if i.Container != "" && exec.Command("docker", "inspect", i.Container).Run() == nil {
			t.Errorf("container %s is left", i.Container)
		}
	}
	if text := u.do("gfaas", "ps", "-o", "json"); strings.TrimSpace(text) != "[]" {
		t.Errorf("ps after down: %s", text)
	}
	u.empty("sim")
	u.daemonLeaves()
}

// alive reports whether a process runs. A zombie does not: its command line is empty.
func alive(pid int) bool {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && len(line) > 0
}

// empty checks that no file of the simulated device remains.
func (u *user) empty(dir string) {
	u.t.Helper()
	left, _ := filepath.Glob(filepath.Join(u.dir, dir, "gpu*"))
	if len(left) > 0 {
		u.t.Errorf("files of the simulated GPU are left: %v", left)
	}
}

// daemonLeaves waits for the end of the daemon that up started, and of its sockets.
func (u *user) daemonLeaves() {
	u.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, control := os.Stat(filepath.Join(u.dir, "run", "token.sock"))
		_, clients := os.Stat(filepath.Join(u.dir, "run", "client", "token.sock"))
		if os.IsNotExist(control) && os.IsNotExist(clients) {
			return
		}
	}
	u.t.Error("the token daemon or its sockets are left")
}
