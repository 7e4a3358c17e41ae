package instancetest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/number"
)

// Fake is a ports.Runtime that runs instances as HTTP servers in the test process. It
// passes the suite. Create it with NewFake.
type Fake struct {
	// Handler returns the handler of an instance; nil selects one that behaves like
	// testdata/probe.c.
	Handler func(instance.Spec) http.Handler
	// FailStart, if set, can refuse a start.
	FailStart func(instance.Spec) error

	name string

	mu        sync.Mutex
	instances map[string]*fakeInstance // by Handle.Container
	count     int
}

type fakeInstance struct {
	spec   instance.Spec
	server *httptest.Server
	log    []ports.LogLine
	state  instance.State
	ended  chan struct{} // closed when the instance has ended
}

func (in *fakeInstance) print(text string) {
	for ; len(text) > ports.MaxLogLine; text = text[ports.MaxLogLine:] {
		in.log = append(in.log, ports.LogLine{Time: time.Now(), Text: text[:ports.MaxLogLine], Partial: true})
	}
	in.log = append(in.log, ports.LogLine{Time: time.Now(), Text: text})
}

var _ ports.Runtime = (*Fake)(nil)

// NewFake returns a Fake with the name of the runtime that it replaces.
func NewFake(name string) *Fake { return &Fake{name: name, instances: map[string]*fakeInstance{}} }

// Name returns the name given to NewFake.
func (f *Fake) Name() string { return f.name }

// Close has no effect.
func (f *Fake) Close() error { return nil }

// Start starts an HTTP server.
func (f *Fake) Start(ctx context.Context, spec instance.Spec) (instance.Handle, error) {
	if err := ctx.Err(); err != nil {
		return instance.Handle{}, err
	}
	if len(spec.Command) > 0 && strings.HasPrefix(spec.Command[0], "/nowhere/") {
		return instance.Handle{}, &ports.UnavailableError{Err: fmt.Errorf("%s: command not found", spec.Command[0])}
	}
	if f.FailStart != nil {
		if err := f.FailStart(spec); err != nil {
			return instance.Handle{}, err
		}
	}
	in := &fakeInstance{spec: spec, state: instance.State{Running: true, ExitCode: -1, Detail: "running"}, ended: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	id := fmt.Sprintf("fake-%d", f.count)
	f.instances[id] = in
	handle := instance.Handle{Runtime: f.name, Container: id, LogPath: spec.LogPath, Started: time.Now()}
	if long, err := strconv.Atoi(spec.Env["PROBE_LONG"]); err == nil {
		in.print(strings.Repeat("x", long))
	}
	if status, ok := spec.Env["PROBE_EXIT"]; ok {
		in.print("exiting")
		code, err := strconv.Atoi(status)
		if err != nil {
			return instance.Handle{}, err
		}
		in.state = instance.State{ExitCode: code, Detail: fmt.Sprintf("exited with status %d", code)}
		close(in.ended)
		if spec.Job != nil {
			if code != 0 {
				in.state.Restarts = spec.Job.MaxRestarts
			}
			for range in.state.Restarts {
				in.print("exiting")
			}
			return handle, nil
		}
		handle.Address = "127.0.0.1:1"
		return handle, nil
	}
	for i := range 20 {
		in.print(fmt.Sprintf("line %d", i+1))
	}
	if spec.Job != nil { // it runs until it is stopped or killed
		return handle, nil
	}
	in.print("listening")
	in.server = httptest.NewServer(f.handler(spec))
	handle.Address = in.server.Listener.Addr().String()
	_, port, err := net.SplitHostPort(handle.Address)
	if err != nil {
		return instance.Handle{}, err
	}
	in.spec.Env = maps.Clone(spec.Env)
	if in.spec.Env == nil {
		in.spec.Env = map[string]string{}
	}
	in.spec.Env["PORT"] = port
	return handle, nil
}

func (f *Fake) handler(spec instance.Spec) http.Handler {
	if f.Handler != nil {
		return f.Handler(spec)
	}
	env := maps.Clone(spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, map[string]string{
		"GFAAS_INSTANCE": spec.ID, "GFAAS_SECRET": spec.Secret, "GFAAS_SOCKET": "/fake.sock",
		"LD_PRELOAD": "fake", "LD_LIBRARY_PATH": "fake", "PORT": "1", "CUDA_VISIBLE_DEVICES": "0",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": number.Plain(spec.Slice.SMPct),
	})
	if spec.ModelFolder != "" {
		env["GFAAS_MODEL_SOCKET"] = spec.ModelFolder + "/model.sock"
	}
	if spec.AllSMs {
		env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "100"
	}
	if spec.Oversubscribe != "" {
		env["GFAAS_OVERSUBSCRIBE"] = string(spec.Oversubscribe)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, asked := strings.CutPrefix(r.URL.Path, "/env/")
		if value, ok := env[name]; asked && ok {
			_, _ = io.WriteString(w, value)
		} else if asked {
			http.NotFound(w, r)
		} else {
			_, _ = io.WriteString(w, "ok")
		}
	})
}

func (f *Fake) end(in *fakeInstance, state instance.State) {
	f.mu.Lock()
	server, running := in.server, in.state.Running
	in.server = nil
	if running {
		in.state = state
		close(in.ended)
	}
	f.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		server.Close()
	}
}

// Running returns the IDs of the instances that have not ended.
func (f *Fake) Running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, in := range f.instances {
		if in.state.Running {
			ids = append(ids, in.spec.ID)
		}
	}
	return ids
}

// State returns whether the server is running.
func (f *Fake) State(_ context.Context, h instance.Handle) (instance.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if in := f.instances[h.Container]; in != nil {
		return in.state, nil
	}
	return instance.State{ExitCode: -1, Detail: "gone"}, nil
}

// Wait returns when the server is closed.
func (f *Fake) Wait(ctx context.Context, h instance.Handle) (instance.State, error) {
	f.mu.Lock()
	in := f.instances[h.Container]
	f.mu.Unlock()
	if in == nil {
		return instance.State{ExitCode: -1, Detail: "gone"}, nil
	}
	select {
	case <-in.ended:
		return f.State(ctx, h)
	case <-ctx.Done():
		return instance.State{}, ctx.Err()
	}
}

// Find returns the running servers of the instance with an ID, or all if id is empty.
func (f *Fake) Find(_ context.Context, id string) ([]instance.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []instance.Record
	for container, in := range f.instances {
		if (in.spec.ID == id || id == "") && in.state.Running {
			h := instance.Handle{Runtime: f.name, Container: container, Address: in.server.Listener.Addr().String()}
			out = append(out, instance.Record{ID: in.spec.ID, Function: in.spec.Function, Runtime: f.name, Handle: h})
		}
	}
	return out, nil
}

// PID returns the test process's PID, since the server runs in it.
func (f *Fake) PID(_ context.Context, h instance.Handle) (int, error) { return os.Getpid(), nil }

// Unlimited returns nil.
func (f *Fake) Unlimited(context.Context, instance.Handle) error { return nil }

// Kill makes all instances with an ID end by themselves, with an exit status.
func (f *Fake) Kill(id string, status int) {
	f.mu.Lock()
	var all []*fakeInstance
	for _, in := range f.instances {
		if in.spec.ID == id {
			all = append(all, in)
		}
	}
	f.mu.Unlock()
	for _, in := range all {
		f.end(in, instance.State{ExitCode: status, Detail: fmt.Sprintf("exited with status %d", status)})
	}
}

// Stop closes the server and removes its log.
func (f *Fake) Stop(ctx context.Context, h instance.Handle, grace time.Duration) error {
	f.mu.Lock()
	in := f.instances[h.Container]
	stubborn := in != nil && in.state.Running && in.spec.Env["PROBE_STUBBORN"] != ""
	f.mu.Unlock()
	if in == nil {
		return nil
	}
	if stubborn {
		wait := time.NewTimer(grace)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
	}
	f.end(in, instance.State{Detail: "ended"})
	f.mu.Lock()
	in.log = nil
	f.mu.Unlock()
	return nil
}

// Logs returns the output of a probe.
func (f *Fake) Logs(ctx context.Context, h instance.Handle, o ports.LogOptions) ports.LogLines {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := f.instances[h.Container]
	if in == nil {
		return func(func(ports.LogLine, error) bool) {}
	}
	return fakeLog(ctx, in.log, o, in.ended)
}

// fakeLog yields a log that was completely written at the start.
func fakeLog(ctx context.Context, log []ports.LogLine, o ports.LogOptions, ended <-chan struct{}) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		if o.Tail >= 0 {
			log = log[max(0, len(log)-o.Tail):]
		}
		for _, line := range log {
			if !line.Time.Before(o.Since) && !yield(line, nil) {
				return
			}
		}
		if !o.Follow {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			yield(ports.LogLine{}, ctx.Err())
		}
	}
}
