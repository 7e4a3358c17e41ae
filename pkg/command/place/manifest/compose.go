package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/plan"
)

// project is a Compose file.
type project struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
}

type service struct {
	Image       string             `yaml:"image"`
	Entrypoint  []string           `yaml:"entrypoint,omitempty,flow"`
	Environment map[string]string  `yaml:"environment"`
	Expose      []string           `yaml:"expose,flow"`
	IPC         string             `yaml:"ipc"`
	Volumes     []string           `yaml:"volumes"`
	Networks    map[string]network `yaml:"networks"`
	Restart     string             `yaml:"restart"`
	Labels      map[string]string  `yaml:"labels"`
	Deploy      deploy             `yaml:"deploy"`
}

type network struct {
	Aliases []string `yaml:"aliases,flow"`
}

type deploy struct {
	Resources struct {
		Reservations struct {
			Devices []reservation `yaml:"devices"`
		} `yaml:"reservations"`
	} `yaml:"resources"`
}

type reservation struct {
	Driver       string   `yaml:"driver"`
	DeviceIDs    []string `yaml:"device_ids,flow"`
	Capabilities []string `yaml:"capabilities,flow"`
}

// pipes is where MPS listens, on the host unless it says otherwise, and in
// containers.
const pipes = "/tmp/nvidia-mps"

// Compose writes the instances of one node as services of a Compose file: each
// with its GPUs, its share of the SMs and its limit on memory, which the MPS
// daemon of the host holds.
func Compose(p plan.Plan, o Options) (Manifest, error) {
	node, others, err := oneNode(p, o.Node)
	if err != nil {
		return Manifest{}, err
	}
	o.oneNode = true
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	list = slices.DeleteFunc(list, func(w *workload) bool { return w.node != node })
	file := project{Name: "gfaas", Services: map[string]service{}}
	for _, w := range list {
		file.Services[w.name] = composeService(w)
	}
	text, err := write([]document{{"Needs the NVIDIA container toolkit and, for shares and memory limits, a running nvidia-cuda-mps-control.", file}})
	warnings := lost(composeLosses, p, list, o)
	if len(others) > 0 {
		warnings = append(warnings, fmt.Sprintf("only the instances of %s are written: write the others with --node %s", node, strings.Join(others, ", --node ")))
	}
	return Manifest{text, warnings}, err
}

// oneNode is the node a Compose file is for, and those it is not for.
func oneNode(p plan.Plan, asked string) (node string, others []string, err error) {
	var nodes []string
	for _, g := range p.GPUs {
		if len(g.Instances) > 0 && !slices.Contains(nodes, g.Node) {
			nodes = append(nodes, g.Node)
		}
	}
	switch {
	case asked != "" && !slices.Contains(nodes, asked):
		return "", nil, fmt.Errorf("node %s has no instance in the plan: expected one of %s", csvfile.Quote(asked), strings.Join(nodes, ", "))
	case asked == "" && len(nodes) > 1:
		return "", nil, &ManyNodes{nodes}
	case asked == "" && len(nodes) == 1:
		asked = nodes[0]
	}
	return asked, slices.DeleteFunc(nodes, func(n string) bool { return n == asked }), nil
}

// ManyNodes is the error about a plan for several machines where only one can
// be written.
type ManyNodes struct{ Nodes []string }

func (e *ManyNodes) Error() string {
	return fmt.Sprintf("the plan has instances on %d nodes and a Compose file is for one machine: %s", len(e.Nodes), strings.Join(e.Nodes, ", "))
}

// Hint is what to do about it.
func (e *ManyNodes) Hint() string { return "name one with --node and write a file for each" }

func composeService(w *workload) service {
	env := map[string]string{}
	for name, value := range w.fn.Env {
		env[name] = literal(value)
	}
	port := strconv.Itoa(w.fn.Port)
	env["PORT"] = port
	env["CUDA_MPS_PIPE_DIRECTORY"] = pipes
	env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = csvfile.Format(w.SMPct)
	if w.mem > 0 {
		var limits []string
		for i := range w.gpus {
			limits = append(limits, fmt.Sprintf("%d=%dM", i, w.mem))
		}
		env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = strings.Join(limits, ",")
	}
	ids := w.uuids
	if len(ids) < len(w.gpus) {
		ids = nil
		for _, index := range w.gpus {
			ids = append(ids, strconv.Itoa(index))
		}
	}
	s := service{
		Image: literal(w.fn.Image), Environment: env, Expose: []string{port}, IPC: "host", Restart: "unless-stopped",
		Volumes:  []string{"${CUDA_MPS_PIPE_DIRECTORY:-" + pipes + "}:" + pipes},
		Networks: map[string]network{"default": {Aliases: []string{w.group}}},
		Labels:   map[string]string{"gfaas.instance": literal(w.ID), "gfaas.function": literal(w.Function), "gfaas.slice": w.slice()},
	}
	for _, word := range w.fn.Command {
		s.Entrypoint = append(s.Entrypoint, literal(word))
	}
	s.Deploy.Resources.Reservations.Devices = []reservation{{"nvidia", ids, []string{"gpu", "compute", "utility"}}}
	return s
}

// literal keeps Compose from putting variables in.
func literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }
