// Package swarm runs instances as services of a Docker swarm. Runtime implements ports.Runtime on
// the manager at $DOCKER_HOST, or at the local socket.
//
// The swarm makes no decisions: each instance is a service with one task, which is bound to one node (by the
// node's ID) and which Swarm never restarts. The service refers to the image by ID, because Swarm asks a
// registry before each start of an image that has a tag. The task's container
//
//   - has no capabilities, cannot gain privileges, and has limits on memory and processes;
//   - mounts the node's folder of gfaas read-only at /opt/gfaas (Node.Folder);
//   - is attached to an attachable overlay network, at whose address the gateway calls it.
//
// An instance counts as running only while its node is ready and the managers want its task to run: a node
// that was cut off may still run a task that has been replaced.
package swarm

import (
	"context"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/swarm"
	"github.com/docker/docker/api/types/versions"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// DefaultNetwork is the usual value of Config.Network.
const DefaultNetwork = "gfaas"

const (
	// minAPI is the first version of Docker's API in which a service has NoNewPrivileges. Older engines
	// ignore the setting without an error.
	minAPI = "1.44"
	// minEngine is the first major version of engines with this API.
	minEngine = 25

	cleanUp = 30 * time.Second // time limit for cleaning up after the caller's context has ended
	// requestTime is the time limit of a request. A manager without a leader does not answer; when the
	// request is repeated, there may be a new leader.
	requestTime = 8 * time.Second
	// askTime is the time limit of the requests for a snapshot, which managers answer within milliseconds. With a short
	// limit, the gateway notices a new leader soon.
	askTime = 4 * time.Second
)

// Config configures a Runtime.
type Config struct {
	Network string // attachable overlay network of the instances; empty: Start and Find cannot be used

	EngineTimeout time.Duration // time limit for the engine's answer to New; 0 means 10 s
}

// Runtime starts and stops services. It is safe for concurrent use.
type Runtime struct {
	*Store
	local  *docker.Runtime // the engine of the manager, for its images
	images sync.Map        // docker.Image by imageKey: the images that have been examined
	self   string          // Docker's ID of the manager's node

	mu      sync.Mutex
	watched map[string]bool // names of the nodes that Watch has last called usable; nil without Watch
}

var _ ports.Runtime = (*Runtime)(nil)

// unavailable returns a *ports.UnavailableError.
func unavailable(err error, remedy string) error {
	return &ports.UnavailableError{Err: err, Remedy: remedy}
}

// New connects to the engine. It returns a *ports.UnavailableError if the engine is unreachable, is too
// old, is not a manager of a swarm, or lacks the network, if one is given.
func New(ctx context.Context, config Config) (*Runtime, error) {
	local, err := docker.New(ctx, docker.Config{EngineTimeout: config.EngineTimeout})
	if err != nil {
		return nil, err
	}
	r := &Runtime{Store: &Store{newManagers(local.Client(), config.Network)}, local: local}
	if err := r.check(ctx); err != nil {
		_ = local.Close()
		return nil, err
	}
	return r, nil
}

// check checks the engine and the network.
func (r *Runtime) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	if v := r.api.ClientVersion(); versions.LessThan(v, minAPI) {
		return unavailable(fmt.Errorf("the Docker engine has version %s of the API, which cannot keep the tasks of a swarm from gaining privileges", v),
			"install Docker 25 or later on all nodes")
	}
	info, err := r.api.Info(ctx)
	if err != nil {
		return explain("query the Docker engine", err)
	}
	if !info.Swarm.ControlAvailable {
		return unavailable(fmt.Errorf("the Docker engine is not a manager of a swarm (its state in the swarm: %s)", info.Swarm.LocalNodeState),
			"run the command on a manager, or create a swarm: docker swarm init")
	}
	r.self = info.Swarm.NodeID
	if r.network == "" {
		return nil
	}
	var found network.Inspect
	err = r.insist(ctx, func(ctx context.Context) error {
		found, err = r.api.NetworkInspect(ctx, r.network, network.InspectOptions{Scope: "swarm"})
		return err
	})
	create := "create it: docker network create --driver overlay --attachable " + r.network
	switch {
	case cerrdefs.IsNotFound(err):
		return unavailable(fmt.Errorf("the swarm has no network %s", r.network), create)
	case err != nil:
		return explain("find the network "+r.network, err)
	case found.Driver != "overlay" || !found.Attachable:
		return unavailable(fmt.Errorf("the network %s is not an attachable overlay network", r.network), "choose another network, or "+create)
	}
	return nil
}

// Close closes the connection to the engine.
func (r *Runtime) Close() error { return r.local.Close() }

// Name returns instance.Swarm.
func (r *Runtime) Name() string { return instance.Swarm }

// pause waits for d, or until ctx ends. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// detached returns a context for cleaning up, which outlives ctx by up to cleanUp.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
}

// ready reports whether a node is ready to run tasks.
func ready(n *swarm.Node) bool { return n != nil && n.Status.State == swarm.NodeStateReady }
