package swarm

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	dockerswarm "github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// node returns the node that the managers describe with engine labels.
func node(id, host string, labels ...string) *dockerswarm.Node {
	n := &dockerswarm.Node{ID: id, Status: dockerswarm.NodeStatus{State: dockerswarm.NodeStateReady}}
	n.Spec.Availability = dockerswarm.NodeAvailabilityActive
	n.Description.Hostname, n.Description.Engine.EngineVersion, n.Description.Resources.MemoryBytes = host, "26.1.5", 10<<30
	n.Description.Engine.Labels = map[string]string{}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		n.Description.Engine.Labels[key] = value
	}
	return n
}

func TestLabels(t *testing.T) {
	want := Node{
		Name: "gpu-1", Folder: "/run/gfaas/granted", MPS: true, SimDir: "/dev/shm/sim", SimShape: "sms=8",
		GPUs: []GPU{{Name: "0", Model: "NVIDIA H200, 141 GB", Mem: 141 * gpu.GiB}, {Name: "sim:1"}},
	}
	labels := want.Labels()
	got := parseNode(node("id", "host", labels...))
	if got.Fault != "" {
		t.Errorf("fault of a node with the labels %q: %s", labels, got.Fault)
	}
	got = Node{Name: got.Name, Folder: got.Folder, MPS: got.MPS, SimDir: got.SimDir, SimShape: got.SimShape, GPUs: got.GPUs}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("parsed %+v from %q, want %+v", got, labels, want)
	}
	for _, label := range []string{"gfaas.gpu.x=1,", "gfaas.gpu.0=1", "gfaas.gpu.0=-1,", "gfaas.gpu.00=1,", "gfaas.gpu.0=,"} {
		if n := parseNode(node("id", "host", label)); !strings.Contains(n.Fault, label) || len(n.GPUs) > 0 || n.Ready() {
			t.Errorf("label %q: got GPUs %+v and fault %q, want a fault that quotes the label", label, n.GPUs, n.Fault)
		}
	}
}

func TestOutdated(t *testing.T) {
	for version, want := range map[string]bool{"20.10.24+dfsg1": true, "24.0.9": true, "25.0.0": false, "28.2.2": false, "": true, "dev": true} {
		if got := (&Node{Engine: version}).Outdated(); got != want {
			t.Errorf("engine %q: outdated %v, want %v", version, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	down, old := node("4", "down", "gfaas.folder=/f"), node("5", "old", "gfaas.folder=/f")
	down.Status.State, old.Description.Engine.EngineVersion = dockerswarm.NodeStateDown, "20.10.24+dfsg1"
	drained := node("6", "drained", "gfaas.folder=/f")
	drained.Spec.Availability = dockerswarm.NodeAvailabilityDrain
	former := node("7", "a", "gfaas.folder=/f") // node a before it left and joined again
	former.Status.State = dockerswarm.NodeStateDown
	s := &snapshot{nodes: map[string]*dockerswarm.Node{}}
	for _, n := range []*dockerswarm.Node{node("1", "a", "gfaas.folder=/f"), node("2", "b", "gfaas.folder=/f"), node("3", "bare"), down, old, drained, former} {
		s.nodes[n.ID] = n
	}
	for _, c := range []struct {
		gpus string
		node string
		want string // part of the error
	}{
		{"a/sim", "1", ""},
		{"b/0,b/1", "2", ""},
		{"a/0,b/0", "", "different nodes"},
		{"sim", "", "names no node"},
		{"c/sim", "", "no node c"},
		{"a/x", "", "not a GPU"},
		{"bare/0", "", "lacks the label gfaas.folder"},
		{"down/0", "", "is not ready (state down"},
		{"drained/0", "", "availability drain"},
		{"old/0", "", "has the engine 20.10.24"},
	} {
		n, devices, err := s.place(strings.Split(c.gpus, ","))
		switch {
		case c.want == "" && (err != nil || n.ID != c.node || len(devices) != strings.Count(c.gpus, "/")):
			t.Errorf("place %s: node %q, devices %v, %v; want node %q", c.gpus, n.ID, devices, err, c.node)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("place %s: error %v, want one with %q", c.gpus, err, c.want)
		}
	}
}

// A node with an invalid label, or with the name of another usable node, is not used. The other nodes are.
func TestFaultyNodes(t *testing.T) {
	labels := []string{"gfaas.folder=/f", "gfaas.gpu.0=1,"}
	s := &snapshot{nodes: map[string]*dockerswarm.Node{}, tasks: map[string]*dockerswarm.Task{}}
	for hour, n := range []*dockerswarm.Node{
		node("9", "a", labels...), node("2", "a", labels...), node("3", "b", labels[0], "gfaas.gpu.0=1"), node("4", "b", labels...), node("5", "a"),
		node("6", "c", labels[0], "gfaas.gpu.x=1,"),
	} {
		n.CreatedAt = time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC)
		s.nodes[n.ID] = n
	}
	check := func(want ...string) {
		t.Helper()
		var used []string
		for _, n := range Usable(s.list()) {
			used = append(used, n.ID)
		}
		if !slices.Equal(used, want) {
			t.Errorf("usable nodes %q, want %q", used, want)
		}
	}
	check("9", "4")
	for gpu, want := range map[string]string{"a/0": "9", "b/0": "4"} {
		if n, _, err := s.place([]string{gpu}); err != nil || n.ID != want {
			t.Errorf("place %s: node %q, %v; want %s", gpu, n.ID, err, want)
		}
	}
	if _, _, err := s.place([]string{"c/0"}); err == nil || !strings.Contains(err.Error(), `node c cannot be used: its label "gfaas.gpu.x=1," is invalid`) {
		t.Errorf("place c/0: %v, want that its label is invalid", err)
	}
	err := faults(s.list())
	for _, want := range []string{"node a (2) cannot be used: node 9 has the same name", "; node b (3) cannot be used: its label"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults: %v, want a text with %q", err, want)
		}
	}
	s.nodes["9"].Status.State = dockerswarm.NodeStateDown
	check("2", "4")
	task := &dockerswarm.Task{NodeID: "2", DesiredState: dockerswarm.TaskStateRunning}
	task.Status.State = dockerswarm.TaskStateRunning
	s.tasks["s"] = task
	s.nodes["9"].Status.State = dockerswarm.NodeStateReady
	check("2", "4") // which has instances
}

// A drain stays with its node, even if another node of the same name is used instead from then on.
func TestDrainWithTwin(t *testing.T) {
	r, m := fakeSwarm(t)
	twin := node("3", "b", "gfaas.folder=/f", "gfaas.gpu.0=1,L4")
	twin.CreatedAt = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m.nodes = append(m.nodes, twin)
	if remaining, err := r.Drain(t.Context(), "b", 0); err != nil || remaining != 1 || m.nodes[1].Spec.Availability != dockerswarm.NodeAvailabilityDrain || twin.Spec.Availability != dockerswarm.NodeAvailabilityActive {
		t.Errorf("Drain: %d instances remain, %v; nodes %+v and %+v, want that the first is drained", remaining, err, m.nodes[1].Spec, twin.Spec)
	}
}

func TestService(t *testing.T) {
	r := &Runtime{Store: &Store{newManagers(nil, "gfaas")}}
	img := docker.Image{ID: "sha256:abc", Entrypoint: []string{"/probe"}, Env: []string{"LD_PRELOAD=/theirs.so"}}
	n := Node{ID: "n1", Name: "a", Memory: 10 << 30, Folder: "/run/gfaas/granted", MPS: true, GPUs: []GPU{{Name: "3"}}}
	spec := instance.Spec{
		ID: "resnet.7", Function: "resnet", Image: "resnet:1", Port: 8080, GPUs: []string{"a/3", "a/1"}, Slice: gpu.Slice{SMPct: 50, Mem: gpu.GiB},
		Env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, ReadOnly: true,
	}
	s, err := r.service(spec, img, n, []gpu.Device{{Index: 3}, {Index: 1}})
	if err != nil {
		t.Fatal(err)
	}
	c, task := s.TaskTemplate.ContainerSpec, s.TaskTemplate
	if c.Image != img.ID || !c.Privileges.NoNewPrivileges || !slices.Equal(c.CapabilityDrop, []string{"ALL"}) || !c.ReadOnly {
		t.Errorf("container %+v, want the image's ID, no capabilities, no new privileges and a read-only file system", c)
	}
	if task.RestartPolicy.Condition != dockerswarm.RestartPolicyConditionNone || *s.Mode.Replicated.Replicas != 1 || s.EndpointSpec.Mode != dockerswarm.ResolutionModeDNSRR || !slices.Equal(task.Placement.Constraints, []string{"node.id==n1"}) {
		t.Errorf("service %+v, want one task on node n1 that is never restarted", s)
	}
	if l := task.Resources.Limits; l.MemoryBytes != 8<<30 || l.Pids != instance.DefaultPids {
		t.Errorf("limits %+v, want 80%% of the node's memory and %d processes", l, instance.DefaultPids)
	}
	for _, want := range []string{"NVIDIA_VISIBLE_DEVICES=3,1", "CUDA_VISIBLE_DEVICES=1,0", "GFAAS_INSTANCE=resnet.7", "LD_PRELOAD=/opt/gfaas/libgfaas.so:/theirs.so", "CUDA_MPS_PIPE_DIRECTORY=/opt/gfaas/mps"} {
		if !slices.Contains(c.Env, want) {
			t.Errorf("%s is not in %q", want, c.Env)
		}
	}
	for _, m := range c.Mounts {
		if strings.HasPrefix(m.Source, n.Folder) && !m.ReadOnly {
			t.Errorf("mount %+v, want a read-only one", m)
		}
	}
	if r := task.Resources.Reservations.GenericResources; len(r) != 2 || r[0].DiscreteResourceSpec.Kind != "gfaas-gpu3" || r[1].DiscreteResourceSpec.Kind != "gfaas-gpu1" {
		t.Errorf("generic resources %+v, want one of each GPU", r)
	}
	if _, err := r.service(spec, img, n, []gpu.Device{{Simulated: true}}); err == nil {
		t.Error("simulated GPU of a node without a folder for it: no error")
	}
}

// Docker refuses other names of services.
func TestServiceName(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"a", "resnet.7", "resnet-7", "resnet_7", strings.Repeat("x", 62) + "1", strings.Repeat("x", 62) + "2"} {
		name := serviceName("gfaas", id)
		if len(name) > 63 || strings.ContainsAny(name, "._") || seen[name] {
			t.Errorf("service of %s: name %q, want at most 63 letters, digits and dashes, unlike those of other instances", id, name)
		}
		seen[name] = true
	}
}

// An instance whose node is not ready, or whose task is to end, does not run, whatever the task's own state is.
func TestState(t *testing.T) {
	up, cut := node("up", "up"), node("cut", "cut")
	cut.Status.State = dockerswarm.NodeStateDown
	for _, c := range []struct {
		name           string
		node           string
		state, desired dockerswarm.TaskState
		exit           int
		err            string
		running        bool
		code           int
		detail         string
		neverStarted   bool
	}{
		{name: "runs", node: "up", state: dockerswarm.TaskStateRunning, desired: dockerswarm.TaskStateRunning, running: true, code: -1, detail: "running"},
		{name: "on a lost node", node: "cut", state: dockerswarm.TaskStateRunning, desired: dockerswarm.TaskStateShutdown, code: -1, detail: "its node is not ready"},
		{name: "on a lost node that is not noticed yet by the orchestrator", node: "cut", state: dockerswarm.TaskStateRunning, desired: dockerswarm.TaskStateRunning, code: -1, detail: "its node is not ready"},
		{name: "on a node that has returned", node: "up", state: dockerswarm.TaskStateRunning, desired: dockerswarm.TaskStateShutdown, code: -1, detail: "it is being stopped"},
		{name: "failed", node: "up", state: dockerswarm.TaskStateFailed, desired: dockerswarm.TaskStateShutdown, exit: 3, err: "task: non-zero exit (3)", code: 3, detail: "exited with status 3"},
		{name: "ended", node: "up", state: dockerswarm.TaskStateComplete, desired: dockerswarm.TaskStateShutdown, code: 0, detail: "ended"},
		{name: "rejected", node: "up", state: dockerswarm.TaskStateRejected, desired: dockerswarm.TaskStateShutdown, neverStarted: true, err: "No such image: x", code: -1, detail: "No such image: x"},
	} {
		task := &dockerswarm.Task{NodeID: c.node, DesiredState: c.desired}
		task.Status = dockerswarm.TaskStatus{State: c.state, Err: c.err, Timestamp: time.Now()}
		if !c.neverStarted {
			task.Status.ContainerStatus = &dockerswarm.ContainerStatus{ContainerID: "c", ExitCode: c.exit}
		}
		s := &snapshot{nodes: map[string]*dockerswarm.Node{"up": up, "cut": cut}, tasks: map[string]*dockerswarm.Task{"s": task}}
		if got := s.state("s"); got.Running != c.running || got.ExitCode != c.code || got.Detail != c.detail {
			t.Errorf("%s: %+v, want running %v, exit code %d, %q", c.name, got, c.running, c.code, c.detail)
		}
	}
	if got := (&snapshot{}).state("s"); got.Running || got.Detail != "gone" {
		t.Errorf("no task: %+v, want gone", got)
	}
}

func TestExplainTask(t *testing.T) {
	for detail, want := range map[string]string{
		"No such image: sha256:abc":                                               "docker save resnet:1 | ssh a docker load",
		"no suitable node (insufficient resources on 1 node)":                     "gfaas node describe",
		"invalid mount config for type \"bind\": bind source path does not exist": "--trust",
	} {
		err := explainTask("resnet:1", "a", &taskError{detail: detail})
		h, ok := err.(interface{ Hint() string })
		if !ok || !strings.Contains(h.Hint(), want) {
			t.Errorf("%q: %v, want a hint with %q", detail, err, want)
		}
	}
}
