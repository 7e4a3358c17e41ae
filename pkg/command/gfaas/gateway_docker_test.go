package gfaas

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/status"
)

// served is a running gateway in a place.
type served struct {
	*environment
	*gateway.Client
	cmd    *exec.Cmd
	stderr *bytes.Buffer
}

// serve starts a gateway and waits until it has adopted the running instances.
func (p *environment) serve(args ...string) *served {
	p.t.Helper()
	s := &served{environment: p, Client: gateway.Dial(filepath.Join(p.dir, "run")), stderr: &bytes.Buffer{}}
	s.cmd = p.command(append([]string{"serve", "--listen", "", "--gpu", "sim"}, args...)...)
	s.cmd.Stderr = s.stderr
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		s.Close()
		if s.cmd.ProcessState == nil {
			s.end(syscall.SIGKILL)
		}
		if p.t.Failed() {
			p.t.Logf("messages of the gateway:\n%s", s.stderr)
		}
	})
	eventually(p.t, "the gateway is ready", func() bool {
		answer, err := s.Send(context.Background(), http.MethodGet, "/readyz", nil, nil)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return s
}

// end sends a signal to the gateway, waits until it has ended, and returns its exit status.
func (s *served) end(with syscall.Signal) int {
	_ = s.cmd.Process.Signal(with)
	return exitStatus(s.cmd.Wait())
}

// reply is the outcome of a call.
type reply struct {
	status                       int
	body                         string
	instance, start, code, retry string
}

// call calls a function with headers of the form "NAME: VALUE". It may run concurrently with the test.
func (s *served) call(name, body string, headers ...string) (r reply, err error) {
	h := http.Header{}
	for _, line := range headers {
		key, value, _ := strings.Cut(line, ": ")
		h.Add(key, value)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	answer, err := s.Send(ctx, http.MethodPost, "/function/"+name, h, strings.NewReader(body))
	if err != nil {
		return r, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return reply{answer.StatusCode, string(text), answer.Header.Get("Gfaas-Instance"), answer.Header.Get("Gfaas-Start"),
		answer.Header.Get("Gfaas-Reason"), answer.Header.Get("Retry-After")}, err
}

func (s *served) must(name, body string, headers ...string) reply {
	s.t.Helper()
	r, err := s.call(name, body, headers...)
	if err != nil {
		s.t.Fatalf("call %s: %v", name, err)
	}
	return r
}

// function returns the status of a function.
func (s *served) function(name string) status.Function {
	s.t.Helper()
	all, err := s.Status(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range all.Functions {
		if f.Function == name {
			return f
		}
	}
	s.t.Fatalf("no function %s in %+v", name, all)
	return status.Function{}
}

// applied applies a file and waits until the gateway knows the functions.
func (s *served) applied(file string, names ...string) {
	s.t.Helper()
	s.output("apply", "-f", file)
	for _, name := range names {
		eventually(s.t, "the gateway knows the function "+name, func() bool {
			return s.Do(context.Background(), http.MethodGet, "/system/function/"+name, nil, nil) == nil
		})
	}
}

// engine returns the address of the Docker engine for the tests.
func engine() string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return "unix:///var/run/docker.sock"
}

// TestServeBothRuntimes checks that calls have the same outcomes on processes and on containers, from the first start to
// the last stop, including a kill of the gateway.
func TestServeBothRuntimes(t *testing.T) {
	t.Parallel()
	p := dockerEnvironment(t)
	image := importImage(t, p)
	runtimes := map[string]string{"process": "command: [" + p.getenv("FUNCTION") + "]", "docker": "image: " + image}
	var text strings.Builder
	for runtime, program := range runtimes {
		for name, rest := range map[string]string{
			"echo": "scale: {idle: 1h}", "fails": `env: {FAIL: "3"}`, "slow": "timeout: 500ms", "big": "gpu_mem: 1000GiB",
			"one": "queue: 1, scale: {max: 1}",
		} {
			fmt.Fprintf(&text, "---\n{name: %s-%s, %s, %s}\n", name, runtime, program, rest)
		}
	}
	p.write("f.yaml", text.String())
	s := p.serve()
	s.applied("f.yaml", "echo-docker", "big-process")
	for runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			s.statuses(t, runtime)
		})
	}
	docker := s.must("echo-docker", "x").instance
	if n := containers(t, image); n == 0 {
		t.Error("running containers: got 0, want at least 1")
	}

	// After a kill, both instances survive and the next gateway adopts them.
	s.end(syscall.SIGKILL)
	before := containers(t, image)
	s = p.serve()
	for runtime := range runtimes {
		r := s.must("echo-"+runtime, "after the kill")
		if r.status != 200 || r.body != "after the kill" || r.start != "gpu-warm" || runtime == "docker" && r.instance != docker {
			t.Errorf("call of echo-%s after a kill of the gateway: got %+v, want status 200, the body of the call and start gpu-warm", runtime, r)
		}
	}
	if n := containers(t, image); n > before {
		t.Errorf("containers after a kill of the gateway: got %d, want at most %d", n, before)
	}

	// On shutdown, the gateway answers running calls, refuses new calls and leaves nothing behind.
	var calls sync.WaitGroup
	for runtime := range runtimes {
		calls.Go(func() {
			if r, err := s.call("echo-"+runtime, "last", "X-Sleep: 3000"); err != nil || r.status != 200 || r.body != "last" {
				t.Errorf("call while the gateway ends: got %+v, %v; want status 200 and body last", r, err)
			}
		})
	}
	for runtime := range runtimes {
		eventually(t, "the call is in flight", func() bool { return *s.function("echo-" + runtime).InFlight == 1 })
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gateway refuses new calls", func() bool {
		r, err := s.call("echo-docker", "late")
		return err != nil || r.status == 503 && r.code == "draining" && r.retry != ""
	})
	calls.Wait()
	if code := exitStatus(s.cmd.Wait()); code != 0 {
		t.Errorf("exit status of the gateway: got %d, want 0", code)
	}
	p.checkNothingRemains()
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after the end of the gateway: got %d, want 0", n)
	}
}

// statuses checks the possible outcomes of a call on a runtime.
func (s *served) statuses(t *testing.T, runtime string) {
	on := func(name string) string { return name + "-" + runtime }
	want := func(description string, r reply, status int, code string) {
		t.Helper()
		if r.status != status || code != "" && r.code != code || (r.instance == "") != (code != "") {
			t.Errorf("%s: got %+v, want %d %s", description, r, status, code)
		}
	}
	first := s.must(on("echo"), "hello")
	want("from zero", first, 200, "")
	if first.body != "hello" || first.start != "cold" {
		t.Errorf("first call: got %+v, want body hello and start cold", first)
	}
	if r := s.must(on("echo"), "again"); r.start != "gpu-warm" || r.instance != first.instance || r.body != "again" {
		t.Errorf("second call: got %+v; want start gpu-warm, instance %v, body again", r, first.instance)
	}
	want("a function's own status", s.must(on("echo"), "x", "X-Status: 418"), 418, "")
	r := s.must(on("fails"), "x")
	want("a start that fails", r, 502, "start-failed")
	for _, message := range []string{"ended before it was ready: exited with status 3", `it printed last:\n  loading the model\n  no such model`} {
		if !strings.Contains(r.body, message) {
			t.Errorf("body of a failed start: got %s, want %s in it", r.body, message)
		}
	}
	want("larger than a GPU", s.must(on("big"), "x"), 503, "too-large-for-gpu")
	want("no answer in time", s.must(on("slow"), "x", "X-Sleep: 60000"), 504, "timeout")

	// An instance that dies: 502, and then another one answers. Its output is still available.
	r = s.must(on("echo"), "x", "X-Die: 7")
	want("an instance that ends", r, 502, "instance-died")
	second := s.must(on("echo"), "next")
	want("after it", second, 200, "")
	if second.instance == first.instance {
		t.Errorf("call after the end of instance %s: got an answer from the same instance, want another one", first.instance)
	}
	s.must(on("echo"), "printed by "+runtime+"\n", "X-Print: 1")
	eventually(t, "the gateway's logs have the printed line", func() bool {
		answer, err := s.Send(t.Context(), http.MethodGet, "/system/logs?name="+on("echo"), nil, nil)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return strings.Contains(string(text), `"text":"printed by `+runtime+`"`) && strings.Contains(string(text), second.instance)
	})
	eventually(t, "gfaas logs prints the line", func() bool { return strings.Contains(s.output("logs", on("echo")), "printed by "+runtime) })

	// A queue for one call: the first call runs, the second is queued, the third is refused.
	var calls sync.WaitGroup
	for n := range 2 {
		calls.Go(func() {
			if r, err := s.call(on("one"), "x", "X-Sleep: 3000"); err != nil || r.status != 200 {
				t.Errorf("call of a function with a queue for one call: got %+v, %v; want status 200", r, err)
			}
		})
		eventually(t, "the first call runs and the second is queued", func() bool {
			f := s.function(on("one"))
			return *f.InFlight == 1 && *f.Waiting == n
		})
	}
	r = s.must(on("one"), "x")
	want("a full queue", r, 429, "queue-full")
	if r.retry == "" {
		t.Error("Retry-After of a call refused by a full queue: got none, want a value")
	}
	calls.Wait()

	// Scaling by hand, also to zero.
	s.output("scale", on("echo")+"=2", "--wait")
	if n := s.function(on("echo")).Instances; n != 2 {
		t.Errorf("instances after gfaas scale: got %d, want 2", n)
	}
	s.output("scale", on("echo")+"=0", "--wait")
	want("from zero again", s.must(on("echo"), "x"), 200, "")
}

// TestEngineStopsAnswering makes the Docker engine unavailable. Running containers still receive calls, starts fail
// with the reason, and processes are unaffected. When the engine is back, containers start again.
func TestEngineStopsAnswering(t *testing.T) {
	t.Parallel()
	p := newDockerEnvironment(t)
	image := importImage(t, p)
	e := newEngineGate(t, filepath.Join(p.dir, "docker.sock"))
	p.env = append(p.env, "DOCKER_HOST=unix://"+e.path)
	p.write("f.yaml", fmt.Sprintf("{name: boxed, image: %s}\n---\n{name: other, image: %s}\n---\n{name: plain, command: [%s]}\n", image, image, p.getenv("FUNCTION")))
	s := p.serve()
	s.applied("f.yaml", "boxed", "other", "plain")
	first := s.must("boxed", "x")
	if first.status != 200 {
		t.Fatalf("first call of boxed: got %+v, want status 200", first)
	}
	e.shut()
	if r := s.must("boxed", "while it is away"); r.status != 200 || r.body != "while it is away" || r.instance != first.instance {
		t.Errorf("call of a running container without the engine: got %+v; want status 200, body while it is away, instance %v", r, first.instance)
	}
	if r := s.must("other", "x"); r.status != 502 || r.code != "start-failed" || !strings.Contains(r.body, "Docker") {
		t.Errorf(`call that needs a new container without the engine: got %+v; want status 502, code start-failed, body with "Docker"`, r)
	}
	if r := s.must("plain", "x"); r.status != 200 {
		t.Errorf("call of a process without the engine: got %+v, want status 200", r)
	}
	e.open()
	eventually(t, "a call starts a container again", func() bool { return s.must("other", "x").status == 200 })
	if r := s.must("boxed", "x"); r.status != 200 || r.instance != first.instance {
		t.Errorf("call of the first container after the engine's return: got %+v, want status 200 and instance %v", r, first.instance)
	}
	if code := s.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit status of the gateway: got %d, want 0", code)
	}
	p.checkNothingRemains()
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after the end of the gateway: got %d, want 0", n)
	}
}

// engineGate is a proxy to the engine that can be closed.
type engineGate struct {
	t    *testing.T
	path string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

func newEngineGate(t *testing.T, path string) *engineGate {
	e := &engineGate{t: t, path: path, conns: map[net.Conn]bool{}}
	e.open()
	t.Cleanup(e.shut)
	return e
}

func (e *engineGate) open() {
	e.t.Helper()
	l, err := net.Listen("unix", e.path)
	if err != nil {
		e.t.Fatal(err)
	}
	e.mu.Lock()
	e.listener = l
	e.mu.Unlock()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go e.pass(conn)
		}
	}()
}

func (e *engineGate) pass(conn net.Conn) {
	network, address, _ := strings.Cut(engine(), "://")
	docker, err := net.DialTimeout(network, address, 10*time.Second)
	if err != nil {
		_ = conn.Close()
		return
	}
	e.mu.Lock()
	e.conns[conn], e.conns[docker] = true, true
	e.mu.Unlock()
	forward := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if c, ok := to.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { forward(docker, conn) })
	both.Go(func() { forward(conn, docker) })
	both.Wait()
	e.mu.Lock()
	delete(e.conns, conn)
	delete(e.conns, docker)
	e.mu.Unlock()
	_, _ = conn.Close(), docker.Close()
}

// shut closes all connections, as a crash of the engine does.
func (e *engineGate) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.listener.Close()
	for conn := range e.conns {
		_ = conn.Close()
	}
}

// TestKilledWhileStarting kills a gateway while instances start. The next gateway stops the incomplete instances of both
// runtimes and answers calls.
func TestKilledWhileStarting(t *testing.T) {
	t.Parallel()
	p := newDockerEnvironment(t)
	image := importImage(t, p)
	p.write("f.yaml", fmt.Sprintf("{name: boxed, image: %s, env: {START_MS: \"20000\"}}\n---\n{name: plain, command: [%s], env: {START_MS: \"20000\"}}\n", image, p.getenv("FUNCTION")))
	p.write("fast.yaml", fmt.Sprintf("{name: boxed, image: %s}\n---\n{name: plain, command: [%s]}\n", image, p.getenv("FUNCTION")))
	s := p.serve()
	s.applied("f.yaml", "boxed", "plain")
	var calls sync.WaitGroup
	for _, name := range []string{"boxed", "plain"} {
		calls.Go(func() { _, _ = s.call(name, "x") })
	}
	eventually(t, "both instances start", func() bool {
		return containers(t, image) == 1 && strings.Count(s.output("ps", "-o", "csv"), "127.0.0.1:") == 2
	})
	before := s.output("ps", "-o", "csv")
	s.end(syscall.SIGKILL)
	calls.Wait()
	p.output("apply", "-f", "fast.yaml")
	s = p.serve()
	for _, name := range []string{"boxed", "plain"} {
		if r := s.must(name, "x"); r.status != 200 || r.start != "cold" || strings.Contains(before, "\n"+r.instance+",") {
			t.Errorf("call of %s after the kill: got %+v, want status 200 from a new instance with start cold", name, r)
		}
	}
	eventually(t, "the incomplete instances are removed", func() bool {
		return containers(t, image) == 1 && strings.Count(s.output("ps", "-o", "csv"), ",ready,") == 2 && strings.Count(s.output("ps", "-o", "csv"), "\n") == 3
	})
	if code := s.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit status of the gateway: got %d, want 0", code)
	}
	p.checkNothingRemains()
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after the end of the gateway: got %d, want 0", n)
	}
}

// TestContainerRestarts checks that a container that its engine has restarted receives calls again.
func TestContainerRestarts(t *testing.T) {
	t.Parallel()
	p := newDockerEnvironment(t)
	image := importImage(t, p)
	p.write("f.yaml", fmt.Sprintf("{name: boxed, image: %s, restart: always}\n", image))
	s := p.serve()
	s.applied("f.yaml", "boxed")
	if r := s.must("boxed", "x"); r.status != 200 {
		t.Fatalf("first call of boxed: got %+v, want status 200", r)
	}
	for range 2 {
		if r := s.must("boxed", "x", "X-Die: 5"); r.status != 502 || r.code != "instance-died" {
			t.Errorf("call that ends the container: got %+v, want status 502 and code instance-died", r)
		}
		eventually(t, "the restarted container answers a call", func() bool { return s.must("boxed", "x").status == 200 })
	}
	if code := s.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit status of the gateway: got %d, want 0", code)
	}
	p.checkNothingRemains()
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after the end of the gateway: got %d, want 0", n)
	}
}
