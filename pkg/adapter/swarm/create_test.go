package swarm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dockerswarm "github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/instance"
)

// newService is the service of an instance f-1.
func newService() (s dockerswarm.ServiceSpec) {
	s.Name, s.Labels = serviceName(DefaultNetwork, "f-1"), map[string]string{labelGateway: DefaultNetwork, instance.LabelInstance: "f-1", labelStart: "x"}
	return s
}

// If the answer of the request that creates a service is lost, the service is found, even if the managers then have no
// leader for a while, and even if the caller has left.
func TestCreateFindsService(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprintf("caller leaves: %v", leaves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := gatewayOf(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				m.refuse = func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/services") }
				m.lost = func(r *http.Request) bool {
					if !leaves {
						m.lost = nil // the next request has an answer
					} else {
						cancel()
					}
					return strings.HasSuffix(r.URL.Path, "/services/create")
				}
				type result struct {
					id  string
					err error
				}
				done := make(chan result, 1)
				go func() {
					id, err := r.create(ctx, newService())
					done <- result{id, err}
				}()
				time.Sleep(20 * time.Second)
				m.change(func() { m.lost, m.refuse = nil, nil })
				if got := <-done; got.err != nil || len(m.services) != 2 || got.id != m.services[1].ID {
					t.Errorf("service %q, %v; want the second of %d", got.id, got.err, len(m.services))
				}
			})
		})
	}
}

// A start whose caller leaves before any request has reached the managers ends, without a service.
func TestCreateEndsWithCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := gatewayOf(t)
		m.refuse = func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/services/create") }
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := r.create(ctx, newService()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 11*time.Second || len(m.services) != 1 {
			t.Errorf("create: %v after %v, %d services; want the end of the caller's time after 10 s, and one service", err, time.Since(began), len(m.services))
		}
	})
}

// A start ends if its service is removed meanwhile, for example with docker service rm.
func TestStartOfRemovedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := gatewayOf(t)
		task := &dockerswarm.Task{ServiceID: "new", NodeID: "1", DesiredState: dockerswarm.TaskStateRunning}
		task.Status.State = dockerswarm.TaskStatePreparing
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() {
			_, err := r.await(ctx, "new", "1")
			done <- err
		}()
		time.Sleep(time.Second) // the task does not exist yet
		m.change(func() { m.tasks = append(m.tasks, task) })
		time.Sleep(time.Second)
		m.change(func() { m.tasks = m.tasks[:1] })
		if err := <-done; err == nil || !strings.Contains(err.Error(), "removed") {
			t.Errorf("await: %v, want that the task was removed", err)
		}
	})
}

// A start ends if the engine does not start the task, but not while the managers have no quorum.
func TestStartOnHangingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := gatewayOf(t)
		task := &dockerswarm.Task{ServiceID: "new", NodeID: "1", DesiredState: dockerswarm.TaskStateRunning}
		task.Status.State = dockerswarm.TaskStatePreparing
		m.tasks = append(m.tasks, task)
		began := time.Now()
		time.AfterFunc(engineTime/2, func() { m.change(func() { m.broken = true }) })
		time.AfterFunc(10*engineTime, func() { m.change(func() { m.broken = false }) })
		_, err := r.await(t.Context(), "new", "1")
		least := 11 * engineTime // after the return of the quorum
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "the engine has not started it within 1m0s: state preparing") || took < least || took > least+2*settleTime {
			t.Errorf("await: %v after %v, want that the engine has not started it, after %v to %v", err, took, least, least+2*settleTime)
		}
	})
}
