package examples_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ours returns a new run directory for the benchmark, and the environment of programs
// that use it.
func ours(b *testing.B) (dir string, env []string) {
	dir, err := os.MkdirTemp("", "gfaas") // short: sockets' paths are
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_STATE="+filepath.Join(dir, "state.db"),
		"XDG_CONFIG_HOME="+dir, "GFAAS_SIM_DIR="+filepath.Join(dir, "sim"), "SAXPY_BLOCKS=1",
		"LD_LIBRARY_PATH="+filepath.Dir(built(b, "lib", "sim", "libcuda.so.1")))
}

// command runs a program that must succeed.
func command(b *testing.B, env []string, in string, name string, args ...string) {
	b.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin = env, strings.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// daemon starts a program that runs until the benchmark ends.
func daemon(b *testing.B, env []string, name string, args ...string) {
	b.Helper()
	log, err := os.CreateTemp(b.TempDir(), "log")
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stderr = env, log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && b.Failed() {
			b.Logf("%s printed:\n%s", name, text)
		}
	})
}

// waitFor repeats a request until its status is 200.
func waitFor(b *testing.B, client *http.Client, url string, every time.Duration) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(every) {
		response, err := client.Get(url)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			b.Fatalf("GET %s: %v, %+v", url, err, response)
		}
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkFromZero compares the first call of a function that has no instance with the
// time from the start of its program to the program's first answer, in alternation.
func BenchmarkFromZero(b *testing.B) {
	saxpy, gfaas := built(b, "examples", "saxpy", "saxpy"), built(b, "bin", "gfaas")
	dir, env := ours(b)
	function := func(n int) string { return fmt.Sprint("f", n) }
	var file strings.Builder
	for n := range b.N + 1 {
		fmt.Fprintf(&file, "---\nname: %s\ncommand: [%s]\ncontract: http\ngpu_mem: 1MiB\nscale: {idle: 1h}\nprobes: {paths: []}\n", function(n), saxpy)
	}
	daemon(b, env, gfaas, "serve", "--listen", "127.0.0.1:0", "--gpu", "sim", "--pool", fmt.Sprint(b.N+1))
	socket := filepath.Join(dir, "run", "gateway.sock")
	gateway := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	waitFor(b, gateway, "http://gateway/readyz", 10*time.Millisecond)
	command(b, env, file.String(), gfaas, "apply", "-f", "-")
	waitFor(b, gateway, "http://gateway/function/"+function(b.N)+"/healthz", 10*time.Millisecond) // the token daemon starts
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var alone, through []time.Duration
	b.ResetTimer()
	for n := range b.N {
		port := reserve(b)
		cmd := exec.Command(saxpy)
		cmd.Env = append(env[:len(env):len(env)], fmt.Sprint("PORT=", port))
		begin := time.Now()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		waitFor(b, direct, fmt.Sprintf("http://127.0.0.1:%d/healthz", port), 500*time.Microsecond)
		alone = append(alone, time.Since(begin))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()

		begin = time.Now()
		waitFor(b, gateway, "http://gateway/function/"+function(n)+"/healthz", 0)
		through = append(through, time.Since(begin))
	}
	b.StopTimer()
	own, call := median(alone), median(through)
	b.ReportMetric(own.Seconds()*1e3, "alone-ms")
	b.ReportMetric(call.Seconds()*1e3, "through-ms")
	b.ReportMetric((call.Seconds()-1.3*own.Seconds())*1e3, "beyond-1.3x-ms")
}

// BenchmarkRunStart measures the time that gfaas run adds to a program that does no
// work, while a token daemon is running.
func BenchmarkRunStart(b *testing.B) {
	gfaas := built(b, "bin", "gfaas")
	_, env := ours(b)
	daemon(b, env, built(b, "bin", "gfaas-tokend"))
	run := []string{"run", "--gpu", "sim", "--", "true"}
	command(b, env, "", gfaas, run...)
	var alone, version, through []time.Duration
	b.ResetTimer()
	for range b.N {
		begin := time.Now()
		command(b, env, "", "true")
		alone = append(alone, time.Since(begin))
		begin = time.Now()
		command(b, env, "", gfaas, "version")
		version = append(version, time.Since(begin))
		begin = time.Now()
		command(b, env, "", gfaas, run...)
		through = append(through, time.Since(begin))
	}
	b.StopTimer()
	b.ReportMetric(median(alone).Seconds()*1e3, "alone-ms")
	b.ReportMetric(median(version).Seconds()*1e3, "version-ms")
	b.ReportMetric((median(through)-median(alone)).Seconds()*1e3, "added-ms")
}
