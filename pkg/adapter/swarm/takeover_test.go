package swarm

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dockerswarm "github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/instance"
)

// afterAttempts waits for a second, and for the end of an attempt that begins at its end: what follows happens between
// two attempts.
func afterAttempts() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// takeOver lets another gateway claim the instances.
func takeOver(t *testing.T, r *Runtime) {
	t.Helper()
	second := another(r, newView(r.api, r.configName()))
	if err := second.Claim(t.Context()); err != nil {
		t.Error(err)
	}
}

// A gateway that was cut off while it stopped an instance does not stop it after its successor has taken it over.
func TestStopAfterTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := gatewayOf(t)
		m.change(func() { m.broken = true })
		done := make(chan error, 1)
		go func() { done <- r.Stop(t.Context(), instance.Handle{Container: "s"}, 0) }()
		afterAttempts()
		m.change(func() {
			m.broken, m.refuse = false, func(r *http.Request) bool { return r.Method == http.MethodDelete }
		})
		afterAttempts()
		takeOver(t, r)
		m.change(func() { m.refuse = nil })
		if err := <-done; !errors.Is(err, ErrSuperseded) || len(m.services) != 1 {
			t.Errorf("Stop: %v, %d services remain; want that another gateway has taken over, and one service", err, len(m.services))
		}
	})
}

// A gateway that was cut off while it saved its state does not change that of its successor.
func TestSaveAfterTakeover(t *testing.T) {
	for _, c := range []struct{ name, method, functions, want string }{
		{"new version", http.MethodPost, "name: f\nimage: b\n---\nname: g\nimage: a\n", "gfaas-f-v1 gfaas-g-v1"},
		{"removed function", http.MethodDelete, "name: f\nimage: a\n", "gfaas-f-v1 gfaas-g-v1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := gatewayOf(t)
				if err := r.Save(t.Context(), Saved{Writer: "w", Functions: functions(t, "name: f\nimage: a\n---\nname: g\nimage: a\n")}); err != nil {
					t.Fatal(err)
				}
				m.change(func() {
					m.refuse = func(r *http.Request) bool {
						return r.Method == c.method && !strings.HasSuffix(r.URL.Path, "/update")
					}
				})
				done := make(chan error, 1)
				go func() { done <- r.Save(t.Context(), Saved{Writer: "w", Functions: functions(t, c.functions)}) }()
				afterAttempts()
				takeOver(t, r)
				m.change(func() { m.refuse = nil })
				if err, got := <-done, strings.Join(m.names(), " "); !errors.Is(err, ErrSuperseded) || got != c.want {
					t.Errorf("Save: %v, configs %s; want that another gateway has taken over, and %s", err, got, c.want)
				}
			})
		})
	}
}

// A start that another gateway overtakes fails, so that the instance, which the successor does not know, is removed.
func TestStartAfterTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := gatewayOf(t)
		id, err := r.create(t.Context(), newService())
		if err != nil {
			t.Fatal(err)
		}
		task := &dockerswarm.Task{ServiceID: id, NodeID: "1", DesiredState: dockerswarm.TaskStateRunning}
		task.Status.State = dockerswarm.TaskStateRunning
		m.tasks = append(m.tasks, task)
		takeOver(t, r)
		if _, err := r.await(t.Context(), id, "1"); !errors.Is(err, ErrSuperseded) {
			t.Errorf("await: %v, want that another gateway has taken over", err)
		}
	})
}

// If the config that names the owner of the state is removed, the gateway creates it again with its next save.
func TestSaveWithoutConfig(t *testing.T) {
	r, m := gatewayOf(t)
	m.configs = nil
	if err := r.Save(t.Context(), Saved{Writer: "w", Functions: functions(t, "name: f\nimage: a\n")}); err != nil {
		t.Fatal(err)
	}
	s, err := r.Load(t.Context())
	if err != nil || s == nil || s.Writer != "w" || len(s.Functions) != 1 {
		t.Errorf("loaded %+v, %v; want the function", s, err)
	}
	takeOver(t, r)
	if err := r.Save(t.Context(), Saved{Writer: "w"}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("after another gateway has taken over: %v", err)
	}
}
