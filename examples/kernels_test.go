package examples_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// kernelDaemon starts gfaas-kerneld on a simulated GPU, with further flags. It returns a function that makes a command for the daemon.
func kernelDaemon(t *testing.T, flags ...string) func(name string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "kern") // sockets' paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	env := append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_SIM_DIR="+filepath.Join(dir, "sim"), "GFAAS_LIB_DIR="+built(t, "lib"),
		"XDG_CONFIG_HOME="+dir, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+built(t, "lib", "python"))
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Env, cmd.Dir = env, dir
		return cmd
	}
	var said bytes.Buffer
	daemon := command(built(t, "bin", "gfaas-kerneld"), append(flags, "--gpu", "sim", "--gpu-mem", "64MiB", "--host-mem", "64MiB")...)
	daemon.Stderr = &said
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Signal(os.Interrupt)
		if err := daemon.Wait(); err != nil || t.Failed() {
			t.Errorf("gfaas-kerneld: %v\n%s", err, said.String())
		}
	})
	for end := time.Now().Add(time.Minute); command(built(t, "bin", "gfaas-kerneld"), "ls").Run() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("gfaas-kerneld does not answer")
		}
	}
	return command
}

// TestKernelClient checks the Python client over the daemon's socket and over TCP. It also runs the example that uses the client:
// the kernel graphs of examples/kernels compute the same results as plain Python. pkg/kgraph tests the code of the kernels.
func TestKernelClient(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", reserve(t))
	command := kernelDaemon(t, "--listen", address)
	script, err := filepath.Abs("testdata/kernel_client.py")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := command("python3", script, address, built(t, "examples", "kernels")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := command("python3", filepath.Join(built(t, "examples", "kernels"), "run.py")).CombinedOutput()
	lines := regexp.MustCompile(`(?m)^(\w+) +run [0-9.]+ ms, total [0-9.]+ ms, largest difference (\S+)$`).FindAllStringSubmatch(string(out), -1)
	if err != nil || len(lines) != 5 {
		t.Fatalf("run.py: %v, want five results:\n%s", err, out)
	}
	const k = 32 // terms in each element of a product of matrices
	most := map[string]float64{"sgemm": 1e-6 * k, "dgemm": 1e-14 * k, "cgemm": 2e-6 * k, "jacobi": 1e-4, "nearest": 0}
	for _, line := range lines {
		if difference, err := strconv.ParseFloat(line[2], 64); err != nil || !(difference <= most[line[1]]) {
			t.Errorf("run.py: the results of %s differ by %s, want at most %v", line[1], line[2], most[line[1]])
		}
	}
}
