package swarm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/swarm"
	"github.com/docker/docker/client"
)

// labelGateway is the label of services with the network of their gateway. A network has one gateway.
const labelGateway = "gfaas.network"

// view is the state of the swarm's nodes and of the instances' tasks. Callers that need it at the same
// time share requests. It is safe for concurrent use.
type view struct {
	api    *client.Client
	labels filters.Args
	config string // name of the gateway's config

	asking    chan struct{} // holds a value while a request is in progress
	mu        sync.Mutex    // guards the fields below
	current   *snapshot
	recovered time.Time            // when the managers last changed their leader, or had none
	returned  map[string]time.Time // when each node last became ready, by Docker's ID
}

// snapshot is the state that the managers reported.
type snapshot struct {
	asked   time.Time // when the request began
	nodes   map[string]*swarm.Node
	leader  string                 // Docker's ID of the node with the managers' leader
	unknown map[string]time.Time   // nodes that have yet to report to the leader, with the time of the first snapshot that shows it
	tasks   map[string]*swarm.Task // the latest task of each service, by the service's ID
	owner   string                 // the gateway that owns the instances; empty if there is none
}

// unknownTime is how long a node may need to report to a new leader. In tests, all nodes did so within 6 s. The leader
// itself waits for 30 s before it declares a node down.
const unknownTime = 15 * time.Second

// settleTime is how long tasks may be rejected after a node has returned, or after there is a new leader: a node is ready
// before its networks are, and a new leader learns the nodes' resources one after another.
const settleTime = 20 * time.Second

func newView(api *client.Client, config string) *view {
	return &view{api: api, config: config, labels: filters.NewArgs(filters.Arg("label", labelGateway)), asking: make(chan struct{}, 1), returned: map[string]time.Time{}}
}

// latest returns the latest snapshot, or nil.
func (v *view) latest() *snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

// since returns a snapshot that was requested at the given time or later.
func (v *view) since(ctx context.Context, at time.Time) (*snapshot, error) {
	select {
	case v.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.asking }()
	if s := v.latest(); s != nil && !s.asked.Before(at) {
		return s, nil
	}
	s, err := v.ask(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil && leaderless(err) {
			v.recovered = time.Now()
			if v.current != nil {
				clear(v.current.unknown) // the time to report begins again with the next leader
			}
		}
		return nil, err
	}
	if last := v.current; last != nil {
		if s.leader != last.leader {
			v.recovered = time.Now()
		}
		for id, n := range s.nodes {
			if ready(n) && !ready(last.nodes[id]) {
				v.returned[id] = time.Now()
			}
		}
	}
	v.current = s
	return s, nil
}

// settling reports whether, within settleTime, the node with Docker's ID has returned, or the managers have changed their
// leader or had none.
func (v *view) settling(node string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Since(v.recovered) < settleTime || time.Since(v.returned[node]) < settleTime
}

// ask requests a snapshot.
func (v *view) ask(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	s := &snapshot{asked: time.Now(), nodes: map[string]*swarm.Node{}, unknown: map[string]time.Time{}, tasks: map[string]*swarm.Task{}}
	// Tasks come first, so that the state of a task's node is not older than that of the task.
	tasks, err := v.api.TaskList(ctx, swarm.TaskListOptions{Filters: v.labels})
	if err != nil {
		return nil, explain("list the tasks of the swarm", err)
	}
	nodes, err := v.api.NodeList(ctx, swarm.NodeListOptions{})
	if err != nil {
		return nil, explain("list the nodes of the swarm", err)
	}
	if err := checkQuorum(nodes); err != nil {
		return nil, explain("list the nodes of the swarm", err)
	}
	config, err := findConfig(ctx, v.api, v.config)
	if err != nil {
		return nil, explain("read the config "+v.config, err)
	}
	if config != nil {
		s.owner = config.Spec.Labels[labelOwner]
	}
	for _, n := range nodes {
		if n.ManagerStatus != nil && n.ManagerStatus.Leader {
			s.leader = n.ID
		}
	}
	last := v.latest()
	for i := range nodes {
		n := &nodes[i]
		// A new leader does not know the nodes' states until they report to it.
		if n.Status.State == swarm.NodeStateUnknown && last != nil && ready(last.nodes[n.ID]) {
			since, waits := last.unknown[n.ID]
			if !waits || s.leader != last.leader {
				since = s.asked
			}
			if s.asked.Sub(since) < unknownTime {
				n.Status.State, s.unknown[n.ID] = swarm.NodeStateReady, since
			}
		}
		s.nodes[n.ID] = n
	}
	for i := range tasks {
		t := &tasks[i]
		if old := s.tasks[t.ServiceID]; old == nil || old.CreatedAt.Before(t.CreatedAt) {
			s.tasks[t.ServiceID] = t
		}
	}
	return s, nil
}

// errNoQuorum reports that the managers' leader cannot reach a majority of them.
var errNoQuorum = errors.New("no quorum")

// checkQuorum returns an error that is errNoQuorum if the nodes' list shows that the leader cannot reach a majority of the
// managers. Such a leader continues to answer requests that change nothing for up to half a minute.
func checkQuorum(nodes []swarm.Node) error {
	managers, reachable := 0, 0
	for i := range nodes {
		if status := nodes[i].ManagerStatus; status != nil {
			managers++
			if status.Leader || status.Reachability == swarm.ReachabilityReachable {
				reachable++
			}
		}
	}
	if 2*reachable > managers || managers == 0 {
		return nil
	}
	return fmt.Errorf("%w: the leader reaches %d of %d managers, itself included", errNoQuorum, reachable, managers)
}

// ended reports whether a task's container has ended, or never starts.
func ended(t *swarm.Task) bool {
	switch t.Status.State {
	case swarm.TaskStateComplete, swarm.TaskStateFailed, swarm.TaskStateRejected, swarm.TaskStateShutdown, swarm.TaskStateOrphaned, swarm.TaskStateRemove:
		return true
	}
	return false
}

// wanted reports whether the managers want a task to run.
func wanted(t *swarm.Task) bool { return t.DesiredState == swarm.TaskStateRunning }

// ran reports whether a task's container has run and ended by itself.
func ran(t *swarm.Task) bool {
	return t.Status.State == swarm.TaskStateComplete || t.Status.State == swarm.TaskStateFailed && !neverRan(t)
}

// neverRan reports whether the engine could not start a task's container.
func neverRan(t *swarm.Task) bool {
	return t.Status.ContainerStatus == nil || strings.Contains(t.Status.Err, "starting container failed") || strings.Contains(t.Status.Err, "failed to create")
}

// failure describes why a task has ended.
func failure(t *swarm.Task) (code int, detail string) {
	code = -1
	if c := t.Status.ContainerStatus; c != nil && t.Status.State != swarm.TaskStateRejected {
		code = c.ExitCode
	}
	switch {
	case t.Status.State == swarm.TaskStateComplete:
		return 0, "ended"
	case t.Status.State == swarm.TaskStateOrphaned:
		return -1, "its node has been lost"
	case t.Status.State == swarm.TaskStateFailed && code > 0 && !neverRan(t):
		return code, "exited with status " + strconv.Itoa(code)
	case t.Status.Err != "":
		return code, t.Status.Err
	}
	return code, fmt.Sprintf("its task is in state %s", t.Status.State)
}
