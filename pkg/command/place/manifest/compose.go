package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
)

// project is a Compose file, or a stack's.
type project struct {
	Version  string             `yaml:"version,omitempty"` // a stack's: what Docker of before 2024 goes by
	Name     string             `yaml:"name,omitempty"`
	Services map[string]service `yaml:"services"`
	Networks map[string]netspec `yaml:"networks,omitempty"`
}

type service struct {
	Image       string             `yaml:"image"`
	User        string             `yaml:"user"`
	Entrypoint  []string           `yaml:"entrypoint,omitempty,flow"`
	Environment map[string]string  `yaml:"environment"`
	Ports       []string           `yaml:"ports,omitempty,flow"`
	IPC         string             `yaml:"ipc,omitempty"`
	ReadOnly    bool               `yaml:"read_only,omitempty"`
	CapDrop     []string           `yaml:"cap_drop,flow"`
	SecurityOpt []string           `yaml:"security_opt,omitempty,flow"`
	PidsLimit   int                `yaml:"pids_limit,omitempty"`
	Volumes     []mount            `yaml:"volumes"`
	Networks    map[string]network `yaml:"networks"`
	Restart     string             `yaml:"restart,omitempty"`
	Labels      map[string]string  `yaml:"labels"`
	Deploy      *deploy            `yaml:"deploy,omitempty"`
}

type network struct {
	Aliases []string `yaml:"aliases,flow"`
}

// netspec is a network as a whole.
type netspec struct {
	Driver     string `yaml:"driver,omitempty"`
	Attachable bool   `yaml:"attachable,omitempty"`
	External   bool   `yaml:"external,omitempty"`
	Name       string `yaml:"name,omitempty"`
}

type deploy struct {
	Replicas      int                `yaml:"replicas,omitempty"`
	Placement     *constraints       `yaml:"placement,omitempty"`
	RestartPolicy *restartPolicy     `yaml:"restart_policy,omitempty"`
	Resources     containerResources `yaml:"resources,omitempty"`
}

type constraints struct {
	Constraints []string `yaml:"constraints,flow"`
}

type restartPolicy struct {
	Condition string `yaml:"condition"`
}

type containerResources struct {
	Limits       *hostLimits   `yaml:"limits,omitempty"`
	Reservations *reservations `yaml:"reservations,omitempty"`
}

type hostLimits struct {
	CPUs   string `yaml:"cpus,omitempty"`
	Memory string `yaml:"memory,omitempty"`
	Pids   int    `yaml:"pids,omitempty"`
}

type reservations struct {
	Devices          []reservation     `yaml:"devices,omitempty"`
	GenericResources []genericResource `yaml:"generic_resources,omitempty"`
}

type reservation struct {
	Driver       string   `yaml:"driver"`
	DeviceIDs    []string `yaml:"device_ids,flow"`
	Capabilities []string `yaml:"capabilities,flow"`
}

// Compose writes the instances of one node as services of a Compose file, which the
// node's token daemon holds to their slices as it does those of gfaas up.
func Compose(p plan.Plan, o Options) (Manifest, error) {
	node, others, err := oneNode(p, o.Node)
	if err != nil {
		return Manifest{}, err
	}
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	list = slices.DeleteFunc(list, func(w *workload) bool { return w.node != node })
	file := project{Name: "gfaas", Services: map[string]service{}}
	if o.Compose == 1 {
		file.Name = ""
	}
	for _, w := range list {
		if file.Services[w.name], err = composeService(w, o); err != nil {
			return Manifest{}, err
		}
	}
	head := "For " + oneLine(node) + ". gfaas register makes its token daemon know the slices, and writes the settings that this file wants, .env."
	if !o.Simulated {
		head += "\n# Needs the NVIDIA container toolkit."
	}
	text, err := write([]document{{head, file}})
	warnings := lost(tokenDaemon, p, list, o)
	if len(others) > 0 {
		warnings = append(warnings, fmt.Sprintf("only the instances of %s are written: write the others with --node %s", node, strings.Join(others, ", --node ")))
	}
	return Manifest{text, warnings}, err
}

// oneLine is a text for a comment.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

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

func composeService(w *workload, o Options) (service, error) {
	s, g, err := newService(w, o.Simulated)
	if err != nil {
		return s, err
	}
	s.Ports = []string{"127.0.0.1::" + strconv.Itoa(w.fn.Port)} // any that is free
	s.SecurityOpt = []string{"no-new-privileges:true"}
	s.Restart = restart(w)
	for i := range s.Volumes {
		if s.Volumes[i].Type == "bind" && o.Compose != 1 { // which makes no folders here unasked
			s.Volumes[i].Bind = &bindMount{CreateHostPath: false}
		}
	}
	if g.mps {
		s.IPC = "host"
	}
	s.Deploy = &deploy{Resources: containerResources{Limits: w.hostLimits()}}
	if limits := s.Deploy.Resources.Limits; o.Compose == 1 {
		s.PidsLimit, limits.Pids = limits.Pids, 0
		if *limits == (hostLimits{}) {
			s.Deploy.Resources.Limits = nil
		}
	}
	if !o.Simulated {
		s.Deploy.Resources.Reservations = &reservations{Devices: []reservation{{"nvidia", w.devices(), []string{"gpu", "compute", "utility"}}}}
	}
	return s, nil
}

// newService is what the service of an instance is on one machine and on a swarm.
func newService(w *workload, simulated bool) (service, guest, error) {
	g, err := newGuest(w, simulated)
	if err != nil {
		return service{}, g, err
	}
	s := service{
		Image: literal(w.fn.Image), User: user, Entrypoint: literals(w.fn.Command), Environment: g.env, Volumes: g.mounts,
		CapDrop: []string{"ALL"}, ReadOnly: w.fn.ReadOnly,
		Networks: map[string]network{"default": {Aliases: []string{w.group}}}, Labels: w.labels(),
	}
	return s, g, nil
}

// restart is whether the engine starts an instance again that has ended.
func restart(w *workload) string {
	if w.fn.Restart == "" {
		return "no"
	}
	return w.fn.Restart
}

// hostLimits are a container's own.
func (w *workload) hostLimits() *hostLimits {
	l := w.fn.Limits
	out := &hostLimits{Pids: l.Pids}
	if out.Pids == 0 {
		out.Pids = instance.DefaultPids
	}
	if l.CPUs > 0 {
		out.CPUs = csvfile.Format(l.CPUs)
	}
	if l.Memory > 0 {
		out.Memory = strconv.FormatInt(int64(l.Memory), 10) + "b"
	}
	return out
}
