package gfaas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// TestKills kills commands and the token daemon at random, and suspends random processes under a command, in four run
// directories at once. The state must stay readable, gfaas down must leave nothing behind, and no instance may work
// without a daemon. GFAAS_KILLS sets the number of kills; make soak uses 2000. If a Docker engine answers, one of the
// four run directories uses containers and a quarter of the kills, because each of them takes longer.
func TestKills(t *testing.T) {
	t.Parallel()
	const workers = 4
	kills := 40
	if text := os.Getenv("GFAAS_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	for n := range workers {
		rounds := kills / workers
		image := ""
		if n == 0 {
			if err := exec.Command("docker", "version").Run(); err == nil {
				image, rounds = importProgram(t, built("examples", "saxpy", "saxpy"), built("lib")), (rounds+3)/4
			} else {
				t.Log("SKIPPED: no Docker engine answers, so none of the four has containers")
			}
		}
		k := newKiller(t, rand.New(rand.NewPCG(seed, uint64(n))), image)
		all.Go(func() {
			for i := range rounds {
				if t.Failed() {
					return
				}
				k.round(i)
			}
			k.checkNothingRemains()
			k.log()
		})
	}
	all.Wait()
}

// killer runs the kills in one run directory.
type killer struct {
	*testing.T
	*rand.Rand
	bin, dir string
	env      []string
	plan     string
	image    string // image of the instances; empty: processes
	killed   map[string]int
}

// built returns the path of a product of make.
func built(names ...string) string {
	path, err := filepath.Abs(filepath.Join(append([]string{"../../../build"}, names...)...))
	if err != nil {
		panic(err)
	}
	return path
}

func newKiller(t *testing.T, random *rand.Rand, image string) *killer {
	t.Helper()
	saxpy := built("examples", "saxpy", "saxpy")
	dir, err := os.MkdirTemp("", "kill") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &killer{T: t, Rand: random, bin: built("bin", "gfaas"), dir: dir, image: image, killed: map[string]int{}}
	for _, file := range []string{k.bin, k.bin + "-tokend", saxpy} {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("run make: %v", err)
		}
	}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "GFAAS_") {
			k.env = append(k.env, entry)
		}
	}
	k.env = append(k.env, "GFAAS_RUN_DIR="+k.run(), "GFAAS_STATE="+filepath.Join(dir, "state.db"), "GFAAS_SIM_DIR="+filepath.Join(dir, "sim"),
		"GFAAS_SIM_GPU=sms=8,mem=1GiB", "XDG_CONFIG_HOME="+dir, "DOCKER_HOST=unix://"+filepath.Join(dir, "no-docker.sock"))
	program := fmt.Sprintf("command: [%q]", saxpy)
	if image != "" {
		program = "image: " + image
		k.env[len(k.env)-1] = "DOCKER_HOST=" + engine()
	}
	k.plan = filepath.Join(dir, "plan.json")
	for file, text := range map[string]string{
		"f.yaml": "name: saxpy\n" + program + "\ncontract: http\n",
		"plan.json": `{"version":1,"algorithm":"fast","model":"rect","gpus_used":1,"bound":1,"bound_method":"area",
 "gpus":[{"node":"node0","index":0,"mem_mib":1024,"instances":[
  {"id":"saxpy-0","function":"saxpy","sm_pct":50,"quota_request":0.4,"quota_limit":0.4,"batch":1,"rps":1,"mem_mib":64,"x":0,"y":0},
  {"id":"saxpy-1","function":"saxpy","sm_pct":50,"quota_request":0.4,"quota_limit":0.8,"batch":1,"rps":1,"mem_mib":64,"x":0.4,"y":0}]}],
 "demand":[{"function":"saxpy","rps":1,"served_rps":1}],"unplaced":[]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sim"), 0o700); err != nil {
		t.Fatal(err)
	}
	k.must("apply", "-f", filepath.Join(dir, "f.yaml"))
	t.Cleanup(func() { _, _, _ = k.gfaas("", "down"); k.killDaemon() })
	return k
}

func (k *killer) run() string { return filepath.Join(k.dir, "run") }

func (k *killer) log() { k.Logf("%s: killed %v", k.dir, k.killed) }

// gfaas runs a command with a time limit of one minute.
func (k *killer) gfaas(input string, args ...string) (out, stderr string, status int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.bin, args...)
	var outBuf, errBuf bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = k.env, strings.NewReader(input), &outBuf, &errBuf
	err := cmd.Run()
	var exited *exec.ExitError
	if ctx.Err() != nil || err != nil && !errors.As(err, &exited) {
		k.Errorf("%s: gfaas %v: %v, %v, %s", k.dir, args, err, ctx.Err(), errBuf.String())
	}
	return outBuf.String(), errBuf.String(), cmd.ProcessState.ExitCode()
}

func (k *killer) must(args ...string) (out string) {
	out, stderr, status := k.gfaas("", args...)
	if status != 0 {
		k.Errorf("%s: gfaas %v: got exit status %d, want 0: %s", k.dir, args, status, stderr)
	}
	return out
}

// round performs a random kill and checks the consequences.
func (k *killer) round(i int) {
	switch command := []string{"up", "up", "down", "apply", "tokend", "stop"}[k.IntN(6)]; command {
	case "up":
		if k.IntN(2) == 0 {
			k.must("down")
		}
		k.kill(command, "up", "--gpu", "sim", "--quiet", k.plan)
	case "down":
		if k.IntN(2) == 0 {
			_, _, _ = k.gfaas("", "up", "--gpu", "sim", "--quiet", k.plan) // ignore the error if it runs already
		}
		k.kill(command, "down")
	case "apply":
		k.kill(command, "apply", "-f", filepath.Join(k.dir, "f.yaml"))
	case "tokend":
		if k.killDaemon() {
			k.killed[command]++
		}
	case "stop":
		if k.stopOne() {
			k.killed[command]++
		}
	}
	if out := k.must("ls", "-o", "csv"); !strings.Contains(out, "\nsaxpy,") {
		k.Errorf("%s: gfaas ls: got %s, want the function saxpy", k.dir, out)
	}
	k.must("ps")
	if i%4 == 3 {
		k.checkNothingRemains()
	}
	if i%10 == 9 {
		k.checkGatedWithoutDaemon()
	}
}

// typicalDuration returns the approximate duration of a command.
func (k *killer) typicalDuration() time.Duration {
	if k.image != "" {
		return 500 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// kill starts a command and kills it at a random time within its usual duration.
func (k *killer) kill(command string, args ...string) {
	cmd := exec.Command(k.bin, args...)
	cmd.Env = k.env
	if err := cmd.Start(); err != nil {
		k.Error(err)
		return
	}
	time.Sleep(time.Duration(k.Int64N(int64(k.typicalDuration())))) // a random moment
	_ = cmd.Process.Kill()
	if _ = cmd.Wait(); !cmd.ProcessState.Exited() {
		k.killed[command]++
	}
}

// stopOne suspends a process of this run directory (an instance, its log keeper or the daemon) while a command runs, and
// resumes it afterwards. The command must end nevertheless.
func (k *killer) stopOne() bool {
	all, err := procfs.Stats()
	if err != nil {
		k.Error(err)
	}
	all = slices.DeleteFunc(all, func(s procfs.Stat) bool {
		env, _ := procfs.Environ(s.PID)
		return s.Exited() || env["GFAAS_RUN_DIR"] != k.run() && !strings.HasPrefix(env["GFAAS_SOCKET"], k.run()+"/")
	})
	if len(all) == 0 {
		return false
	}
	one := all[k.IntN(len(all))]
	p, err := procfs.Open(one.PID, one.Start)
	if err != nil {
		return false // the process has ended
	}
	defer p.Close()
	if p.Signal(unix.SIGSTOP) != nil {
		return false
	}
	defer func() { _ = p.Signal(unix.SIGCONT) }()
	args := [][]string{{"ps"}, {"ls"}, {"down"}, {"up", "--gpu", "sim", "--quiet", "--timeout", "3s", k.plan}}[k.IntN(4)]
	if _, stderr, _ := k.gfaas("", args...); strings.Contains(stderr, "goroutine ") {
		k.Errorf("%s: gfaas %v while process %s is stopped: got a crash, want an exit status: %s", k.dir, args, one.Name, stderr)
	}
	return true
}

// killDaemon kills the token daemon. It reports whether one ran.
func (k *killer) killDaemon() bool {
	text, err := os.ReadFile(filepath.Join(k.run(), "token.lock"))
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return false
	}
	if env, _ := procfs.Environ(pid); env["GFAAS_RUN_DIR"] != k.run() {
		return false
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != k.bin+"-tokend" {
		return false
	}
	p, err := os.FindProcess(pid)
	return err == nil && p.Kill() == nil
}

// until polls a condition for up to a minute.
func (k *killer) until(condition string, done func() bool) {
	if !poll(done) {
		k.Errorf("%s: timed out: %s", k.dir, condition)
	}
}

// checkNothingRemains checks that one gfaas down ends everything.
func (k *killer) checkNothingRemains() {
	k.must("down")
	if all := k.instances(); len(all) > 0 {
		k.Errorf("%s: processes of instances after down: got %v, want none", k.dir, all)
	}
	if k.image != "" {
		// The engine may finish creating a container for a killed command later.
		k.until("no container remains after down", func() bool {
			if containers(k.T, k.image) == 0 {
				return true
			}
			k.must("down")
			return false
		})
	}
	if out := k.must("ps", "-o", "json"); strings.TrimSpace(out) != "[]" {
		k.Errorf("%s: gfaas ps after down: got %s, want no instances", k.dir, out)
	}
	for _, dir := range []string{filepath.Join(k.run(), "instances"), filepath.Join(k.dir, "sim")} {
		k.until(dir+" is empty", func() bool {
			remaining, err := os.ReadDir(dir)
			return len(remaining) == 0 || err != nil
		})
	}
}

// instances returns the processes that run under a slice of this run directory.
func (k *killer) instances() (found []string) {
	all, err := procfs.Stats()
	if err != nil {
		k.Error(err)
	}
	for _, s := range all {
		if env, _ := procfs.Environ(s.PID); !s.Exited() && strings.HasPrefix(env["GFAAS_SOCKET"], k.run()+"/") {
			found = append(found, fmt.Sprintf("%d %s of %s", s.PID, s.Name, env["GFAAS_INSTANCE"]))
		}
	}
	return found
}

// checkGatedWithoutDaemon kills the daemon under running instances. They must stall, and continue with the next daemon.
func (k *killer) checkGatedWithoutDaemon() {
	const body = `{"n": 64, "a": 2}`
	k.must("down")
	k.must("up", "--gpu", "sim", "--quiet", k.plan)
	if !k.killDaemon() {
		k.Errorf("%s: kill the token daemon: no daemon runs", k.dir)
		return
	}
	k.killed["tokend"]++
	k.until("calls stall without a token daemon", func() bool { // until the last lease has ended
		_, _, status := k.gfaas(body, "invoke", "saxpy", "--timeout", "700ms")
		return status == 5
	})
	k.must("run", "--gpu", "sim", "--quiet", "true")
	if _, stderr, status := k.gfaas(body, "invoke", "saxpy"); status != 0 {
		k.Errorf("%s: gfaas invoke with another token daemon: got exit status %d, want 0: %s", k.dir, status, stderr)
	}
}
