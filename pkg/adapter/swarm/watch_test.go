package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/api/types/filters"
	dockerswarm "github.com/docker/docker/api/types/swarm"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// fakeManagers answers requests for the nodes, tasks, configs and services of a swarm, in this process.
type fakeManagers struct {
	mu       sync.Mutex
	nodes    []*dockerswarm.Node
	tasks    []*dockerswarm.Task
	agents   []*dockerswarm.Task
	configs  []*dockerswarm.Config
	services []*dockerswarm.Service
	changes  int                        // of configs and services
	broken   bool                       // they have no leader
	refuse   func(r *http.Request) bool // reports whether a leader is missing for a request; nil: for none
	lost     func(r *http.Request) bool // reports whether the answer of a request is lost; nil: of none
	image    string                     // ID of the only image; "": there is none
	task     func(*dockerswarm.Task)    // sets the state of the task of a new service; nil: there is no task
}

// RoundTrip implements http.RoundTripper.
func (m *fakeManagers) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case m.broken, m.refuse != nil && m.refuse(r):
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.WriteString(`{"message": "rpc error: code = Unknown desc = The swarm does not have a leader."}`)
	case strings.HasSuffix(r.URL.Path, "/tasks") && strings.Contains(r.URL.RawQuery, labelAgent):
		_ = json.NewEncoder(w).Encode(m.agents)
	case strings.Contains(r.URL.Path, "/images/") && m.image != "":
		_ = json.NewEncoder(w).Encode(map[string]string{"Id": m.image})
	case strings.Contains(r.URL.Path, "/images/"):
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.WriteString(`{"message": "no such image"}`)
	case strings.HasSuffix(r.URL.Path, "/tasks"):
		_ = json.NewEncoder(w).Encode(m.tasks)
	case r.Method != http.MethodGet:
		m.changes++
		m.write(w, r)
	case strings.HasSuffix(r.URL.Path, "/configs"):
		wanted, _ := filters.FromJSON(r.URL.Query().Get("filters"))
		_ = json.NewEncoder(w).Encode(slices.DeleteFunc(slices.Clone(m.configs), func(c *dockerswarm.Config) bool {
			return !wanted.MatchKVList("label", c.Spec.Labels) || !wanted.Match("name", c.Spec.Name)
		}))
	case strings.HasSuffix(r.URL.Path, "/services"):
		wanted, _ := filters.FromJSON(r.URL.Query().Get("filters"))
		_ = json.NewEncoder(w).Encode(slices.DeleteFunc(slices.Clone(m.services), func(s *dockerswarm.Service) bool {
			return !wanted.MatchKVList("label", s.Spec.Labels)
		}))
	case strings.HasSuffix(r.URL.Path, "/nodes"):
		_ = json.NewEncoder(w).Encode(m.nodes)
	case strings.Contains(r.URL.Path, "/nodes/"):
		n := slices.IndexFunc(m.nodes, func(n *dockerswarm.Node) bool { return strings.HasSuffix(r.URL.Path, "/nodes/"+n.ID) })
		_ = json.NewEncoder(w).Encode(m.nodes[n])
	}
	if m.lost != nil && m.lost(r) {
		return nil, context.DeadlineExceeded
	}
	return w.Result(), nil
}

// write handles a request that changes a config or a service.
func (m *fakeManagers) write(w http.ResponseWriter, r *http.Request) {
	words := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // VERSION/configs/ID/update
	config := slices.IndexFunc(m.configs, func(c *dockerswarm.Config) bool { return c.ID == words[2] })
	service := slices.IndexFunc(m.services, func(s *dockerswarm.Service) bool { return s.ID == words[2] })
	outdated := func(v dockerswarm.Version) bool {
		return r.URL.Query().Get("version") != strconv.FormatUint(v.Index, 10)
	}
	fail := func(text string) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
	}
	switch {
	case words[1] == "services" && words[2] == "create":
		s := &dockerswarm.Service{ID: "service-" + strconv.Itoa(m.changes)}
		_ = json.NewDecoder(r.Body).Decode(&s.Spec)
		if slices.ContainsFunc(m.services, func(old *dockerswarm.Service) bool { return old.Spec.Name == s.Spec.Name }) {
			fail("rpc error: code = AlreadyExists desc = name conflicts with an existing object: service " + s.Spec.Name + " already exists")
			return
		}
		m.services = append(m.services, s)
		if m.task != nil {
			task := &dockerswarm.Task{ServiceID: s.ID, NodeID: "1", DesiredState: dockerswarm.TaskStateRunning}
			m.task(task)
			m.tasks = append(m.tasks, task)
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{"ID": s.ID})
	case r.Method == http.MethodDelete && service >= 0:
		m.services = slices.Delete(m.services, service, service+1)
	case words[2] == "create":
		c := &dockerswarm.Config{ID: strconv.Itoa(m.changes)}
		_ = json.NewDecoder(r.Body).Decode(&c.Spec)
		if slices.ContainsFunc(m.configs, func(old *dockerswarm.Config) bool { return old.Spec.Name == c.Spec.Name }) {
			fail("config already exists")
			return
		}
		m.configs = append(m.configs, c)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{"ID": c.ID})
	case r.Method == http.MethodDelete && config >= 0:
		m.configs = slices.Delete(m.configs, config, config+1)
	case words[1] == "nodes":
		for _, n := range m.nodes {
			if n.ID == words[2] {
				n.Spec = dockerswarm.NodeSpec{}
				_ = json.NewDecoder(r.Body).Decode(&n.Spec)
			}
		}
	case config >= 0 && outdated(m.configs[config].Version), service >= 0 && outdated(m.services[service].Version):
		fail("update out of sequence")
	case config >= 0:
		m.configs[config].Version.Index++
		_ = json.NewDecoder(r.Body).Decode(&m.configs[config].Spec)
	case service >= 0:
		m.services[service].Version.Index++
		_ = json.NewDecoder(r.Body).Decode(&m.services[service].Spec)
		_, _ = w.Write([]byte("{}"))
	}
}

func (m *fakeManagers) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// fakeSwarm returns a runtime of two nodes, of which the second runs the service s.
func fakeSwarm(t *testing.T) (*Runtime, *fakeManagers) {
	t.Helper()
	task := &dockerswarm.Task{ServiceID: "s", NodeID: "2", DesiredState: dockerswarm.TaskStateRunning}
	task.Status.State = dockerswarm.TaskStateRunning
	m := &fakeManagers{
		nodes: []*dockerswarm.Node{node("1", "a", "gfaas.folder=/f", "gfaas.gpu.0=1,L4"), node("2", "b", "gfaas.folder=/f", "gfaas.gpu.0=1,L4")},
		tasks: []*dockerswarm.Task{task},
	}
	api, err := client.NewClientWithOpts(client.WithHTTPClient(&http.Client{Transport: m}), client.WithVersion("1.45"))
	if err != nil {
		t.Fatal(err)
	}
	return &Runtime{Store: &Store{newManagers(api, DefaultNetwork)}}, m
}

// another returns another Runtime of the same network, with a view.
func another(r *Runtime, v *view) *Runtime {
	return &Runtime{Store: &Store{&managers{api: r.api, network: r.network, view: v}}}
}

// Without a quorum, calls continue for 10 s, and then wait for one. Afterwards, an instance whose node was lost
// meanwhile is not called.
func TestCallable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := fakeSwarm(t)
		h := instance.Handle{Container: "s"}
		if err := r.Callable(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		m.change(func() { m.broken = true })
		time.Sleep(quorumTime - time.Second)
		if err := r.Callable(t.Context(), h); err != nil {
			t.Errorf("shortly after the loss of the quorum: %v", err)
		}
		time.Sleep(2 * time.Second)
		done := make(chan error, 1)
		go func() { done <- r.Callable(t.Context(), h) }()
		time.Sleep(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("without a quorum for a minute: %v, want to wait", err)
		default:
		}
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Callable(limited, h); err == nil {
			t.Error("without a quorum until the caller leaves: no error")
		}
		m.change(func() { m.broken = false })
		if err := <-done; err != nil {
			t.Errorf("with a quorum again: %v", err)
		}
		m.change(func() { m.nodes[1].Status.State = dockerswarm.NodeStateDown })
		time.Sleep(time.Second)
		if _, err := r.Nodes(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Callable(t.Context(), h); err == nil || !strings.Contains(err.Error(), "node is not ready") {
			t.Errorf("on a lost node: %v", err)
		}
	})
}

// A leader that cannot reach a majority of the managers still answers for a while, but has no quorum.
func TestLeaderWithoutQuorum(t *testing.T) {
	r, m := fakeSwarm(t)
	manager := func(id string, leader bool, reachability dockerswarm.Reachability) *dockerswarm.Node {
		n := node(id, "manager-"+id)
		n.ManagerStatus = &dockerswarm.ManagerStatus{Leader: leader, Reachability: reachability}
		return n
	}
	for _, c := range []struct {
		others []dockerswarm.Reachability
		want   bool
	}{
		{nil, true},
		{[]dockerswarm.Reachability{dockerswarm.ReachabilityReachable, dockerswarm.ReachabilityUnreachable}, true},
		{[]dockerswarm.Reachability{dockerswarm.ReachabilityUnreachable}, false},
		{[]dockerswarm.Reachability{dockerswarm.ReachabilityUnreachable, dockerswarm.ReachabilityUnreachable}, false},
	} {
		m.nodes = append(slices.Clone(m.nodes[:2]), manager("m", true, dockerswarm.ReachabilityReachable))
		for k, reachability := range c.others {
			m.nodes = append(m.nodes, manager(strconv.Itoa(10+k), false, reachability))
		}
		_, err := r.view.since(t.Context(), time.Now())
		if (err == nil) != c.want || err != nil && (!leaderless(err) || !strings.Contains(err.Error(), "the leader reaches 1 of")) {
			t.Errorf("leader and managers that are %v: %v, want quorum %v", c.others, err, c.want)
		}
	}
}

// Without a quorum, a start waits for one.
func TestStartWaitsForQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := fakeSwarm(t)
		m.broken = true
		done := make(chan error, 1)
		go func() {
			_, err := r.Start(t.Context(), instance.Spec{ID: "x", Image: "x", GPUs: []string{"a/0"}})
			done <- err
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-done:
			t.Fatalf("without a quorum for an hour: %v, want to wait", err)
		default:
		}
		m.change(func() { m.broken, m.nodes[0].Status.State = false, dockerswarm.NodeStateDown }) // the start fails, but only now
		if err := <-done; err == nil || !strings.Contains(err.Error(), "node a is not ready") {
			t.Errorf("with a quorum again: %v", err)
		}
	})
}

// The caller of Watch knows of the loss of a node before a start on it fails.
func TestWatchBeforeFailedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := fakeSwarm(t)
		ctx, cancel := context.WithCancel(t.Context())
		var usable atomic.Int32
		var watching sync.WaitGroup
		watching.Go(func() {
			r.Watch(ctx, func(nodes []Node) { usable.Store(int32(len(nodes))) }, func(err error) { t.Error(err) })
		})
		time.Sleep(watchPoll / 2)
		m.change(func() { m.nodes[0].Status.State = dockerswarm.NodeStateDown })
		_, err := r.Start(t.Context(), instance.Spec{ID: "x", Image: "x", GPUs: []string{"a/0"}})
		if err == nil || usable.Load() != 1 {
			t.Errorf("the start failed with %v while %d nodes were usable, want 1", err, usable.Load())
		}
		cancel()
		watching.Wait()
	})
}

// An engine that has just returned may reject a task for a while, or has no room for it in the managers' view. A start
// tries again meanwhile. It does not if the node lacks the image, or if nothing has returned.
func TestStartOnReturnedEngine(t *testing.T) {
	reject := func(detail string) func(*dockerswarm.Task) {
		return func(task *dockerswarm.Task) {
			task.Status.State, task.Status.Err = dockerswarm.TaskStateRejected, detail
		}
	}
	lose := func(m *fakeManagers) { m.nodes[0].Status.State = dockerswarm.NodeStateDown }
	for _, c := range []struct {
		name   string
		before func(*fakeManagers) // nil: nothing is lost
		task   func(*dockerswarm.Task)
		fails  bool // at once
	}{
		{"node returned", lose, reject("swarm is not active"), false},
		{"quorum returned", func(m *fakeManagers) { m.broken = true }, reject("swarm is not active"), false},
		{"no room yet", lose, func(task *dockerswarm.Task) {
			task.NodeID, task.Status.State, task.Status.Err = "", dockerswarm.TaskStatePending, "no suitable node (insufficient resources on 1 node)"
		}, false},
		{"image missing", lose, reject("No such image: x"), true},
		{"nothing returned", nil, reject("swarm is not active"), true},
		{"another node returned", func(m *fakeManagers) { m.nodes[1].Status.State = dockerswarm.NodeStateDown }, reject("swarm is not active"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := fakeSwarm(t)
				m.image, m.task = "sha256:1", c.task
				r.images.Store(imageKey("x", nil), docker.Image{ID: "sha256:1"})
				for _, change := range []func(*fakeManagers){func(*fakeManagers) {}, c.before, func(m *fakeManagers) {
					m.broken, m.nodes[0].Status.State, m.nodes[1].Status.State = false, dockerswarm.NodeStateReady, dockerswarm.NodeStateReady
				}} {
					if change != nil {
						m.change(func() { change(m) })
					}
					_, _ = r.view.since(t.Context(), time.Now())
					time.Sleep(time.Second)
				}
				time.AfterFunc(settleTime/2, func() {
					m.change(func() {
						m.task = func(task *dockerswarm.Task) { task.Status.State = dockerswarm.TaskStateRunning }
						for _, task := range m.tasks {
							if task.Status.State == dockerswarm.TaskStatePending {
								task.NodeID, task.Status.State = "1", dockerswarm.TaskStateRunning
							}
						}
					})
				})
				began := time.Now()
				_, err := r.Start(t.Context(), instance.Spec{ID: "x", Image: "x", GPUs: []string{"a/0"}, Slice: gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}, Job: &instance.Job{}})
				if took := time.Since(began); (err != nil) != c.fails || c.fails && (took > time.Second || !strings.Contains(err.Error(), "start a task of x on node a: ")) {
					t.Errorf("start: %v after %v, want failure %v", err, took, c.fails)
				}
				if c.fails != (len(m.services) == 0) {
					t.Errorf("%d services remain", len(m.services))
				}
				time.Sleep(settleTime) // the timer ends
			})
		})
	}
}

// A node has 15 s to report to each new leader, also if one leader follows another.
func TestNodeThatDoesNotReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := fakeSwarm(t)
		isReady := func() bool {
			s, err := r.view.since(t.Context(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return ready(s.nodes["1"])
		}
		lead := func(n int) {
			m.change(func() {
				for i := range m.nodes {
					m.nodes[i].ManagerStatus = &dockerswarm.ManagerStatus{Leader: i == n, Reachability: dockerswarm.ReachabilityReachable}
				}
			})
		}
		lead(1)
		isReady()
		m.change(func() { m.nodes[0].Status.State = dockerswarm.NodeStateUnknown })
		for n, c := range []struct {
			after  time.Duration
			leader int
			want   bool
		}{{time.Millisecond, 0, true}, {14 * time.Second, 0, true}, {time.Millisecond, 1, true}, {14 * time.Second, 1, true}, {2 * time.Second, 1, false}} {
			time.Sleep(c.after)
			lead(c.leader)
			if got := isReady(); got != c.want {
				t.Errorf("step %d: node ready: %v, want %v", n, got, c.want)
			}
		}
	})
}

// The error of an image that is missing at the gateway names its node and the command that copies the image.
func TestImageMissingAtGateway(t *testing.T) {
	r, _ := fakeSwarm(t)
	r.self = "1"
	s, err := r.answered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("cannot be pulled")
	err = r.explainImage(t.Context(), s, "f:1", cause)
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "on a, the node of the gateway") || ports.Hint(err) != "copy the image to the node: docker save f:1 | ssh a docker load" {
		t.Errorf("error %v, hint %q", err, ports.Hint(err))
	}
}

// A gateway whose successor has taken over the instances, for example while it was cut off, calls, starts and stops
// nothing.
func TestSuperseded(t *testing.T) {
	r, _ := fakeSwarm(t)
	if err := r.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := instance.Handle{Container: "s"}
	if err := r.Callable(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	second := another(r, r.view)
	if err := second.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	var last error
	r.Watch(t.Context(), func([]Node) {}, func(err error) { last = err })
	if !errors.Is(last, ErrSuperseded) {
		t.Errorf("Watch: %v, want that another gateway has taken over", last)
	}
	if err := r.Callable(t.Context(), h); !errors.Is(err, ErrSuperseded) {
		t.Errorf("Callable: %v", err)
	}
	if _, err := r.Start(t.Context(), instance.Spec{ID: "x", Image: "x", GPUs: []string{"a/0"}}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("Start: %v", err)
	}
	if err := r.Stop(t.Context(), h, 0); !errors.Is(err, ErrSuperseded) {
		t.Errorf("Stop: %v", err)
	}
	if err := r.Save(t.Context(), Saved{Writer: "w"}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("Save: %v", err)
	}
}

// Watch reports the nodes when they change, and keeps them while the managers do not answer.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := fakeSwarm(t)
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		failures := 0
		var watching sync.WaitGroup
		watching.Go(func() {
			r.Watch(ctx, func(nodes []Node) {
				var names []string
				for _, n := range nodes {
					names = append(names, n.Name)
				}
				seen = append(seen, strings.Join(names, "+"))
			}, func(error) { failures++ })
		})
		for _, change := range []func(){
			func() {},
			func() { m.broken = true },
			func() { m.broken, m.nodes[0].Status.State = false, dockerswarm.NodeStateUnknown }, // a new leader
			func() { m.nodes[0].Status.State = dockerswarm.NodeStateReady },
			func() { m.nodes[0].Spec.Labels = map[string]string{labelDrain: "true"} },
			func() { m.nodes[0].Spec.Labels, m.nodes[1].Status.State = nil, dockerswarm.NodeStateDown },
			func() { m.nodes = append(m.nodes, node("3", "c", "gfaas.folder=/f", "gfaas.gpu.sim=1,sim")) },
			func() { m.nodes[0].Status.State = dockerswarm.NodeStateUnknown }, // a new leader, to which it never reports
			func() {},
			func() {},
			func() { m.nodes[0].Status.State = dockerswarm.NodeStateReady },
		} {
			m.change(change)
			time.Sleep(10*time.Second + 7*time.Millisecond) // not at the time of a request
		}
		cancel()
		watching.Wait()
		if got := strings.Join(seen, " "); got != "a+b b a a+c c a+c" || failures != 1 {
			t.Errorf("nodes %q and %d failures, want a+b b a a+c c a+c and one", got, failures)
		}
	})
}

// Instances that are to end do not count; gfaas node drain waits for the others.
func TestInstancesOfNode(t *testing.T) {
	r, m := fakeSwarm(t)
	s, err := r.view.since(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.node("b"); err != nil || n.Instances != 1 {
		t.Errorf("node b: %+v, %v, want one instance", n, err)
	}
	m.change(func() { m.tasks[0].DesiredState = dockerswarm.TaskStateShutdown })
	if s, err = r.view.since(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.node("b"); err != nil || n.Instances != 0 {
		t.Errorf("node b after the stop: %+v, %v, want no instance", n, err)
	}
}

// The gateway asks the agents that run on ready nodes and have an address on its network.
func TestAgents(t *testing.T) {
	r, m := fakeSwarm(t)
	task := func(node, network, address string, state dockerswarm.TaskState) *dockerswarm.Task {
		t := &dockerswarm.Task{NodeID: node, NetworksAttachments: []dockerswarm.NetworkAttachment{{Addresses: []string{address}}}}
		t.NetworksAttachments[0].Network.Spec.Name, t.Status.State = network, state
		return t
	}
	m.nodes = append(m.nodes, node("3", "c"), node("4", "d"), node("5", "e"))
	m.nodes[4].Status.State = dockerswarm.NodeStateDown
	m.agents = []*dockerswarm.Task{
		task("1", DefaultNetwork, "10.80.1.2/24", dockerswarm.TaskStateRunning), task("2", "other", "10.80.1.3/24", dockerswarm.TaskStateRunning),
		task("3", DefaultNetwork, "10.80.1.4/24", dockerswarm.TaskStatePreparing), task("4", DefaultNetwork, "10.80.1.5/24", dockerswarm.TaskStateRunning),
		task("5", DefaultNetwork, "10.80.1.6/24", dockerswarm.TaskStateRunning),
	}
	got, err := r.Agents(t.Context())
	if want := map[string]string{"a": "10.80.1.2:7480", "d": "10.80.1.5:7480"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("agents %v, %v; want %v", got, err, want)
	}
}
