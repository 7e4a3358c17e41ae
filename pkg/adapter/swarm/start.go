package swarm

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Labels of a service, in addition to those of package instance.
const (
	labelStart    = "gfaas.start"        // identifies the call of Start that created it
	labelPort     = "gfaas.port"         // port inside the container; absent for a job
	labelRestarts = "gfaas.max-restarts" // of a job
	labelPlace    = "gfaas.gpus"         // its GPUs, separated by commas
)

// insideDevice is the folder of the simulated GPUs in a container. Nothing can be mounted below
// preload.InsideFolder, which is read-only.
const insideDevice = "/opt/gfaas-sim"

const (
	defaultPort = 8080
	stopGrace   = 5 * time.Second       // from the stop signal to SIGKILL; a service's grace period cannot change while it runs
	startPoll   = 25 * time.Millisecond // interval of checks whether a task runs
	pendingTime = 3 * time.Second       // time limit for the swarm to find a node for a task
	engineTime  = time.Minute           // time limit for a node's engine to start a task
	rejectPause = time.Second           // between a rejected task and the next one
	maxTries    = 20                    // number of attempts of a start whose tasks are rejected
)

// findImage returns the result of the examination of an image on the manager's engine. It examines the image only if there
// is no earlier result, or if the name now refers to another image.
func (r *Runtime) findImage(ctx context.Context, name string, command []string) (docker.Image, error) {
	key := imageKey(name, command)
	if known, ok := r.images.Load(key); ok {
		if now, err := r.api.ImageInspect(ctx, name); err == nil && now.ID == known.(docker.Image).ID {
			return known.(docker.Image), nil
		}
	}
	found, err := r.local.Examine(ctx, name, command)
	if err == nil {
		r.images.Store(key, found)
	}
	return found, err
}

func imageKey(name string, command []string) string {
	return name + "\x00" + strings.Join(command, "\x00")
}

// Start creates the instance's service, and waits until its task runs. If Start fails, it removes the
// service. While the managers have no quorum, Start waits. An engine may reject tasks for settleTime after its node has
// returned, or after there is a new leader: then Start tries again. The image must be on the manager's engine and on the
// instance's node. If the node is lost, Watch reports that before Start fails.
func (r *Runtime) Start(ctx context.Context, spec instance.Spec) (instance.Handle, error) {
	h, err := r.start(ctx, spec)
	for tries := 1; tries < maxTries && r.mayStartAgain(err) && pause(ctx, rejectPause); tries++ {
		h, err = r.start(ctx, spec)
	}
	if err != nil && len(spec.GPUs) > 0 {
		r.awaitWatch(ctx, spec.GPUs)
	}
	return h, err
}

// mayStartAgain reports whether a start failed because the engine of a settling node rejected the task, for another reason
// than a missing image.
func (r *Runtime) mayStartAgain(err error) bool {
	var failed *taskError
	return errors.As(err, &failed) && failed.rejectedBy != "" && !failed.lacksImage() && r.view.settling(failed.rejectedBy)
}

func (r *Runtime) start(ctx context.Context, spec instance.Spec) (instance.Handle, error) {
	if err := ctx.Err(); err != nil {
		return instance.Handle{}, err
	}
	switch {
	case spec.Image == "":
		return instance.Handle{}, fmt.Errorf("instance %s has no image: a swarm runs containers only", spec.ID)
	case spec.ModelFolder != "":
		return instance.Handle{}, fmt.Errorf("instance %s uses a model daemon, which a swarm does not support", spec.ID)
	}
	if spec.Port == 0 {
		spec.Port = defaultPort
	}
	s, err := r.answered(ctx)
	if err != nil {
		return instance.Handle{}, err
	}
	if err := r.superseded(s); err != nil {
		return instance.Handle{}, err
	}
	node, devices, err := s.place(spec.GPUs)
	if err != nil {
		return instance.Handle{}, fmt.Errorf("place instance %s: %w", spec.ID, err)
	}
	img, err := r.findImage(ctx, spec.Image, spec.Command)
	if err != nil {
		return instance.Handle{}, r.explainImage(ctx, s, spec.Image, err)
	}
	service, err := r.service(spec, img, node, devices)
	if err != nil {
		return instance.Handle{}, err
	}
	started := time.Now() // before any event of the task
	id, err := r.create(ctx, service)
	if err != nil {
		return instance.Handle{}, err
	}
	handle := instance.Handle{Runtime: instance.Swarm, Container: id, Started: started}
	task, err := r.await(ctx, id, node.ID)
	if err == nil && spec.Job == nil {
		handle.Address, err = r.address(task, spec.Port)
	}
	if err == nil {
		return handle, nil
	}
	tidy, cancel := detached(ctx)
	defer cancel()
	err = explainTask(spec.Image, node.Name, err)
	if remains := r.remove(tidy, id, r.insist); remains != nil { // even if another gateway has taken over: it may not know the service
		var failed *taskError
		if errors.As(err, &failed) {
			failed.rejectedBy = "" // another start would find the service
		}
		err = errors.Join(err, remains)
	}
	return instance.Handle{}, err
}

// place returns the node and the devices of GPUs with names like gpu-1/0. It fails if they are on several nodes, or if
// the node cannot start tasks.
func (s *snapshot) place(names []string) (Node, []gpu.Device, error) {
	var at string
	var devices []gpu.Device
	for i, name := range names {
		node, device := gpu.SplitNode(name)
		d, err := gpu.ParseDevice(device)
		switch {
		case err != nil:
			return Node{}, nil, err
		case node == "":
			return Node{}, nil, fmt.Errorf("%s names no node: expected NODE/%s", name, name)
		case i > 0 && node != at:
			return Node{}, nil, fmt.Errorf("%s and %s are on different nodes", names[0], name)
		}
		at, devices = node, append(devices, d)
	}
	node, err := s.node(at)
	switch {
	case err != nil:
		return Node{}, nil, err
	case node.Outdated():
		return Node{}, nil, unavailable(fmt.Errorf("node %s has the engine %s, which cannot keep a task from gaining privileges", node.Name, node.Engine),
			"install Docker 25 or later on the node")
	case node.Fault != "":
		return Node{}, nil, fmt.Errorf("node %s cannot be used: %s", node.Name, node.Fault)
	case !node.Ready():
		return Node{}, nil, fmt.Errorf("node %s is not ready (state %s, availability %s)", node.Name, node.State, node.Availability)
	case node.Folder == "":
		return Node{}, nil, fmt.Errorf("node %s lacks the label %s: put the output of gfaas node describe into its daemon.json", node.Name, labelFolder)
	}
	return node, devices, nil
}

// service returns the specification of an instance's service.
func (r *Runtime) service(spec instance.Spec, img docker.Image, node Node, devices []gpu.Device) (swarm.ServiceSpec, error) {
	inside := docker.Inside{Socket: preload.InsideFolder + "/token.sock", Libs: preload.Libs{Hook: preload.InsideHook}, Fixed: map[string]string{}}
	mounts := []mount.Mount{bind(node.Folder, preload.InsideFolder, true)}
	if img.Preloads == "" { // otherwise, LD_PRELOAD alone makes the program load the library
		mounts = append(mounts, bind(path.Join(node.Folder, preload.PreloadFile), preload.InsidePreload, true))
	}
	if devices[0].Simulated {
		if node.SimDir == "" {
			return swarm.ServiceSpec{}, fmt.Errorf("node %s lacks the label %s, the folder of its simulated GPUs", node.Name, labelSim)
		}
		inside.Libs.SimDir = preload.InsideSim
		for _, d := range devices {
			inside.GPUs = append(inside.GPUs, d.String())
		}
		mounts = append(mounts, bind(node.SimDir, insideDevice, false))
		inside.Fixed["GFAAS_SIM_DIR"] = insideDevice
		if node.SimShape != "" {
			inside.Env = map[string]string{"GFAAS_SIM_GPU": node.SimShape}
		}
	} else {
		inside.GPUs = docker.NumbersInside(devices)
		var visible []string
		for _, d := range devices {
			visible = append(visible, d.Visible())
		}
		inside.Fixed["NVIDIA_VISIBLE_DEVICES"] = strings.Join(visible, ",")
		inside.Fixed["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
		if node.MPS {
			inside.MPS = preload.InsideFolder + "/mps"
			mounts = append(mounts, bind("/dev/shm", "/dev/shm", false)) // MPS needs it; a swarm cannot share the IPC namespace
		}
	}
	env, _, err := inside.Environ(spec, img.Env)
	if err != nil {
		return swarm.ServiceSpec{}, err
	}
	bounds := docker.Bounds(spec.Limits, node.Memory)
	if spec.ReadOnly {
		mounts = append(mounts, mount.Mount{Type: mount.TypeTmpfs, Target: "/tmp"})
	}
	var reserved []swarm.GenericResource
	for _, d := range devices {
		reserved = append(reserved, swarm.GenericResource{DiscreteResourceSpec: &swarm.DiscreteGenericResource{Kind: resource(d.String()), Value: 1}})
	}
	one, grace, none := uint64(1), stopGrace, false
	labels := map[string]string{
		instance.LabelInstance: spec.ID, instance.LabelFunction: spec.Function, labelGateway: r.network,
		labelStart: rand.Text(), labelPlace: strings.Join(spec.GPUs, ","),
	}
	if spec.Job == nil {
		labels[labelPort] = strconv.Itoa(spec.Port)
	} else {
		labels[labelRestarts] = strconv.Itoa(spec.Job.MaxRestarts)
	}
	return swarm.ServiceSpec{
		Annotations: swarm.Annotations{Name: serviceName(r.network, spec.ID), Labels: labels},
		TaskTemplate: swarm.TaskSpec{
			ContainerSpec: &swarm.ContainerSpec{
				Image: img.ID, Command: img.Entrypoint, Args: img.Cmd, Env: env, Init: &none,
				Labels:     map[string]string{instance.LabelInstance: spec.ID, instance.LabelFunction: spec.Function},
				Privileges: &swarm.Privileges{NoNewPrivileges: true}, CapabilityDrop: []string{"ALL"},
				ReadOnly: spec.ReadOnly, Mounts: mounts, StopGracePeriod: &grace,
				Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // the gateway checks the instance itself; with a check, a task runs only after the first one
			},
			Resources: &swarm.ResourceRequirements{
				Limits:       &swarm.Limit{MemoryBytes: int64(bounds.Memory), Pids: int64(bounds.Pids), NanoCPUs: int64(math.Round(bounds.CPUs * 1e9))},
				Reservations: &swarm.Resources{GenericResources: reserved},
			},
			RestartPolicy: &swarm.RestartPolicy{Condition: swarm.RestartPolicyConditionNone},
			Placement:     &swarm.Placement{Constraints: []string{"node.id==" + node.ID}},
			Networks:      []swarm.NetworkAttachmentConfig{{Target: r.network}},
			LogDriver:     &swarm.Driver{Name: "json-file", Options: map[string]string{"max-size": docker.LogFileSize, "max-file": docker.LogFiles}},
		},
		Mode:         swarm.ServiceMode{Replicated: &swarm.ReplicatedService{Replicas: &one}},
		EndpointSpec: &swarm.EndpointSpec{Mode: swarm.ResolutionModeDNSRR},
	}, nil
}

// bind returns a mount of a folder or file of a node.
func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly}
}

// serviceName returns the name of an instance's service.
func serviceName(network, id string) string { return objectName(network, id, id) }

// objectName returns a name that is unique in the swarm and contains the beginning of readable. Docker allows at most
// 63 letters, digits, dashes and underscores for a service; the name leaves room for a suffix.
func objectName(network, unique, readable string) string {
	readable = strings.Map(func(c rune) rune {
		if c == '.' || c == '_' {
			return '-'
		}
		return c
	}, readable)
	sum := sha256.Sum256([]byte(network + "\x00" + unique))
	return "gfaas-" + readable[:min(len(readable), 32)] + "-" + hex.EncodeToString(sum[:6])
}

// create creates a service and returns its ID. It repeats the request while the managers have no leader.
func (r *Runtime) create(ctx context.Context, spec swarm.ServiceSpec) (id string, err error) {
	// A request that ends early may still create the service. So the requests do not end with ctx: the end of
	// ctx only prevents further ones.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err = r.insist(limited, func(request context.Context) error {
		if ctx.Err() != nil { // an earlier attempt may have succeeded
			id, err = r.created(request, spec)
			return err
		}
		made, err := r.api.ServiceCreate(request, spec, swarm.ServiceCreateOptions{})
		id = made.ID
		if cerrdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "name conflicts with an existing object") {
			if id, err = r.created(request, spec); err == nil && id == "" {
				err = fmt.Errorf("the swarm has another service %s", spec.Name)
			}
		}
		return err
	})
	if err == nil && id == "" {
		err = ctx.Err()
	}
	if err != nil {
		return "", explain("create the service "+spec.Name, err)
	}
	return id, nil
}

// created returns the ID of the service that an earlier request with the specification created, or "".
func (r *Runtime) created(ctx context.Context, spec swarm.ServiceSpec) (string, error) {
	list, err := r.api.ServiceList(ctx, swarm.ServiceListOptions{Filters: filters.NewArgs(filters.Arg("label", labelStart+"="+spec.Labels[labelStart]))})
	if err != nil || len(list) == 0 {
		return "", err
	}
	return list[0].ID, nil
}

// await waits until a service's task runs or has run, and returns the task. It fails if the engine cannot start
// the task, or does not within engineTime, if the task is removed, if its node is down, if the swarm finds no node for it
// within pendingTime, or if another Runtime owns the instances. Both times start again while the node is settling.
func (r *Runtime) await(ctx context.Context, id, node string) (*swarm.Task, error) {
	type phase struct{ refused, assigned bool }
	var now phase
	began := time.Now() // of the phase
	exists := false
	for {
		s, err := r.view.since(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && !leaderless(err):
			return nil, err
		case err == nil && r.superseded(s) != nil:
			return nil, r.superseded(s)
		case err == nil:
			t := s.tasks[id]
			switch {
			case t == nil && exists:
				return nil, &taskError{detail: "the task was removed"}
			case t == nil:
			case t.Status.State == swarm.TaskStateRunning, ran(t):
				return t, nil
			case ended(t):
				_, detail := failure(t)
				failed := &taskError{detail: detail}
				if t.Status.State == swarm.TaskStateRejected {
					failed.rejectedBy = node
				}
				return nil, failed
			case t.NodeID != "" && !ready(s.nodes[t.NodeID]):
				return nil, &taskError{detail: "its node is down"}
			default:
				next := phase{t.Status.State == swarm.TaskStatePending && t.Status.Err != "", t.NodeID != ""}
				if next != now || r.view.settling(node) {
					now, began = next, time.Now()
				}
				switch waited := time.Since(began); {
				case now.refused && waited > pendingTime:
					return nil, &taskError{detail: t.Status.Err}
				case !now.assigned && waited > engineTime:
					return nil, &taskError{detail: fmt.Sprintf("the swarm has not assigned it to the node within %v: state %s", engineTime, t.Status.State)}
				case waited > engineTime:
					return nil, &taskError{detail: fmt.Sprintf("the engine has not started it within %v: state %s", engineTime, t.Status.State)}
				}
			}
			exists = t != nil
		}
		if !pause(ctx, startPoll) {
			return nil, ctx.Err()
		}
	}
}

// explainImage adds the gateway's node and a remedy to the error of an image that is missing there.
func (r *Runtime) explainImage(ctx context.Context, s *snapshot, image string, err error) error {
	self := s.nodes[r.self]
	if _, missing := r.api.ImageInspect(ctx, image); self == nil || !cerrdefs.IsNotFound(missing) {
		return err
	}
	node := parseNode(self)
	return unavailable(fmt.Errorf("examine the image on %s, the node of the gateway: %w", node.Name, err), copyImage(image, node.Name))
}

// copyImage returns the remedy for an image that a node lacks.
func copyImage(image, node string) string {
	return fmt.Sprintf("copy the image to the node: docker save %s | ssh %s docker load", image, node)
}

// taskError reports that a task did not start.
type taskError struct {
	detail     string
	rejectedBy string // Docker's ID of the node whose engine rejected the task; empty: none did
}

func (e *taskError) Error() string { return e.detail }

// lacksImage reports whether the node has no image for the task.
func (e *taskError) lacksImage() bool {
	return strings.Contains(strings.ToLower(e.detail), "no such image")
}

// explainTask adds the operation and a remedy to the error of a task that did not start.
func explainTask(image, node string, err error) error {
	var failed *taskError
	if !errors.As(err, &failed) {
		return err
	}
	err = fmt.Errorf("start a task of %s on node %s: %w", image, node, err)
	switch text := failed.detail; {
	case failed.lacksImage():
		return unavailable(err, copyImage(image, node))
	case strings.Contains(text, "bind source path does not exist"):
		return unavailable(err, "start the token daemon of the node with --trust")
	case strings.Contains(text, "insufficient resources"):
		return unavailable(err, "put the output of gfaas node describe into the node's daemon.json, or stop other services that reserve the GPU")
	}
	return err
}

// address returns the address of a task on the overlay network.
func (r *Runtime) address(t *swarm.Task, port int) (string, error) {
	for _, n := range t.NetworksAttachments {
		if n.Network.Spec.Name != r.network || len(n.Addresses) == 0 {
			continue
		}
		prefix, err := netip.ParsePrefix(n.Addresses[0])
		if err != nil {
			return "", fmt.Errorf("address of the task: %w", err)
		}
		return net.JoinHostPort(prefix.Addr().String(), strconv.Itoa(port)), nil
	}
	return "", fmt.Errorf("its task has no address on the network %s", r.network)
}
