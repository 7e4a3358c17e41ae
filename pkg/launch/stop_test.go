package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

// stuck is a runtime that fails to stop instances and finds the lost ones.
type stuck struct {
	*instancetest.Fake
	lost    []instance.Handle
	stopped []instance.Handle
	err     error
}

func (s *stuck) Stop(_ context.Context, h instance.Handle, _ time.Duration) error {
	s.stopped = append(s.stopped, h)
	return s.err
}

func (s *stuck) Find(_ context.Context, id string) ([]instance.Record, error) {
	if id != "f-0" {
		return nil, nil
	}
	var out []instance.Record
	for _, h := range s.lost {
		out = append(out, instance.Record{ID: id, Runtime: h.Runtime, Handle: h})
	}
	return out, nil
}

// useProcess replaces the runtime for processes.
func (b *bench) useProcess(rt ports.Runtime) {
	b.runtimes.byName[instance.Process] = &opening{runtime: rt}
}

func TestCannotStop(t *testing.T) {
	b := newBench(t, time.Minute)
	rt := &stuck{Fake: b.process, err: errors.New("it hangs")}
	b.useProcess(rt)
	fn := serve
	fn.Env = map[string]string{"PROBE_EXIT": "3"}
	s, err := b.Start(t.Context(), fn, place)
	var start *ports.StartError
	if !errors.As(err, &start) || !start.Remains || !strings.Contains(err.Error(), "status 3") || !strings.Contains(err.Error(), "it hangs") {
		t.Errorf("start: got the error %v, want one with status 3 and \"it hangs\" that says that the instance remains", err)
	}
	if err := b.Stop(t.Context(), s); err == nil || !strings.Contains(err.Error(), "stop instance f-0: it hangs") {
		t.Errorf("stop: got the error %v, want \"stop instance f-0: it hangs\"", err)
	}
	if _, known := b.tokens.registered["f-0"]; !known {
		t.Error("f-0 is no longer registered, want it registered while it may still run")
	}
}

func TestStopOfLostInstance(t *testing.T) {
	b := newBench(t, time.Minute)
	lost := []instance.Handle{{Runtime: instance.Process, PID: 7}, {Runtime: instance.Process, PID: 8}}
	rt := &stuck{Fake: b.process, lost: lost}
	b.useProcess(rt)
	b.openDocker = func(context.Context) (ports.Runtime, error) {
		return nil, &ports.UnavailableError{Err: errors.New("no engine")}
	}
	if err := os.MkdirAll(filepath.Join(b.runDir, "logs", "f-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := b.tokens.Register(t.Context(), wire.Registration{Instance: "f-0"}); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), instance.Record{ID: "f-0", Registered: []string{"f-0"}}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(rt.stopped, lost) {
		t.Errorf("stopped %v, want %v", rt.stopped, lost)
	}
	b.empty(t)
}

func TestUnknownRuntime(t *testing.T) {
	b := newBench(t, time.Minute)
	err := b.Stop(t.Context(), instance.Record{ID: "f-0", Handle: instance.Handle{Runtime: "vm"}})
	if err == nil || !strings.Contains(err.Error(), `unknown runtime "vm": expected process or docker`) {
		t.Errorf("stop: got the error %v, want one about the unknown runtime vm", err)
	}
}

// TestEngineHangs checks that the launcher waits for a hanging engine once, not once per instance.
func TestEngineHangs(t *testing.T) {
	b := newBench(t, time.Minute)
	queries := 0
	b.openDocker = func(context.Context) (ports.Runtime, error) {
		queries++
		return nil, &ports.UnavailableError{Err: context.DeadlineExceeded}
	}
	for range 3 {
		if _, err := b.State(t.Context(), instance.Handle{Runtime: instance.Docker}); !ports.Unavailable(err) {
			t.Errorf("state: %v", err)
		}
	}
	if queries != 1 {
		t.Errorf("queries of the hanging engine: got %d, want 1", queries)
	}
}

// dying is an engine that crashes while it starts a container.
type dying struct{ *stuck }

func (d *dying) Start(context.Context, instance.Spec) (instance.Handle, error) {
	return instance.Handle{}, &ports.UnavailableError{Err: errors.New("connection reset")}
}

func (d *dying) Find(ctx context.Context, id string) ([]instance.Record, error) {
	if d.err != nil {
		return nil, d.err
	}
	return d.stuck.Find(ctx, id)
}

// TestEngineDies checks that a container that a crashed engine may have created is stopped when the engine is back.
func TestEngineDies(t *testing.T) {
	b := newBench(t, time.Minute)
	unavailable := &ports.UnavailableError{Err: errors.New("no engine")}
	engine := &dying{&stuck{Fake: b.docker, lost: []instance.Handle{{Runtime: instance.Docker, Container: "c"}}, err: unavailable}}
	running := true
	b.openDocker = func(context.Context) (ports.Runtime, error) {
		if !running {
			return nil, unavailable
		}
		return engine, nil
	}
	fn := serve
	fn.Image = "f:1"
	s, err := b.Start(t.Context(), fn, place)
	var start *ports.StartError
	if !errors.As(err, &start) || !start.Remains || !ports.Unavailable(err) {
		t.Fatalf("error %v, want one that says that something may remain", err)
	}
	running, b.Launcher = false, New(b.config) // like the next command
	if err := b.Stop(t.Context(), s); !ports.Unavailable(err) {
		t.Errorf("stop without an engine: %v", err)
	}
	running, engine.err = true, nil
	if err := b.Stop(t.Context(), s); err != nil || len(engine.stopped) != 1 || engine.stopped[0].Container != "c" {
		t.Errorf("stop when the engine is back: got the error %v and stopped %v, want none and container c", err, engine.stopped)
	}
	b.empty(t)
}
