package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
)

// project is a Compose file or a stack file.
type project struct {
	Version  string             `yaml:"version,omitempty"` // for stacks; Docker before 2024 needs it
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

// netspec is a top-level network.
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

var composeKind = Kind{
	Name: "compose", Help: "Write a plan for one node as a Compose file",
	Long: `Write a Compose file in which each instance is a service. The container of a service has
the same settings as a container that gfaas up starts: the GPUs of the instance, the
preload library, the folder with the socket on which the instance reaches the token
daemon, the limits of the function, and no capabilities. Each service is published on a
free port of 127.0.0.1. Compose connects all services to one network. Other containers
on this network use the name of a function as the host name of its instances.

Before the first start, run gfaas register on the node. It registers the slices with the
token daemon, creates the folders that the Compose file mounts, and writes settings to
the file .env, which Compose reads. Compose applies the restart policy of each function.

` + signHelp,
	Example: `  # Write the file for the node gpu-3, and start it there
  gfaas-place export compose plan.json --functions functions.yaml --node gpu-3 --out-file compose.yaml
  gfaas register plan.json --node gpu-3
  docker compose up -d
  # The same without gfaas register, if the token daemon of gpu-3 trusts the key
  gfaas-place export compose plan.json --functions functions.yaml --node gpu-3 --sign grant.key --out-file compose.yaml
  docker compose up -d`,
	Simulates: true,
	Flags: func(f *pflag.FlagSet, o *Options) {
		f.StringVar(&o.Node, "node", "", "node of the plan to write (not needed if the plan has only one node)")
		signFlags(f, o)
		f.IntVar(&o.Compose, "compose-version", 2, "version of Compose: 1 for docker-compose 1.27 to 1.29 (as in Debian 12), 2 for later versions")
	},
	Write: Compose,
}

// Compose writes the instances of one node as services of a Compose file. The node's token daemon
// enforces their slices, as it does for instances of gfaas up.
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
	if err := o.sign(p, list); err != nil {
		return Manifest{}, err
	}
	file := project{Name: "gfaas", Services: map[string]service{}}
	if o.Compose == 1 {
		file.Name = ""
	}
	for _, w := range list {
		if file.Services[w.name], err = composeService(w, o); err != nil {
			return Manifest{}, err
		}
	}
	head := "gfaas register registers the slices with the token daemon of the node, and writes the settings of this file to .env."
	if o.Signer != nil {
		head = o.signedHead()
	}
	head = "For " + oneLine(node) + ". " + head
	if !o.Simulated {
		head += "\n# Needs the NVIDIA container toolkit."
	}
	text, err := write([]document{{head, file}})
	warnings := lossWarnings(tokenDaemon, p, list, o)
	if len(others) > 0 {
		warnings = append(warnings, fmt.Sprintf("the file contains only the instances of %s; write the files of the other nodes with --node %s", node, strings.Join(others, ", --node ")))
	}
	return Manifest{text, warnings}, err
}

// oneLine returns a text without line breaks, for a comment.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// oneNode returns the node of a Compose file, and the other nodes with instances. It returns an error
// if the plan has several such nodes and requested is empty, or if the node asked for has no
// instance.
func oneNode(p plan.Plan, requested string) (node string, others []string, err error) {
	var nodes []string
	for _, g := range p.GPUs {
		if len(g.Instances) > 0 && !slices.Contains(nodes, g.Node) {
			nodes = append(nodes, g.Node)
		}
	}
	switch {
	case requested != "" && !slices.Contains(nodes, requested):
		return "", nil, fmt.Errorf("the plan has no instances on node %s, only on %s", csvfile.Quote(requested), strings.Join(nodes, ", "))
	case requested == "" && len(nodes) > 1:
		return "", nil, cli.Fail(cli.ExitUsage, "write a file for each node, selected with --node",
			fmt.Errorf("the plan has instances on %d nodes, but a Compose file is for one node: %s", len(nodes), strings.Join(nodes, ", ")))
	case requested == "" && len(nodes) == 1:
		requested = nodes[0]
	}
	return requested, slices.DeleteFunc(nodes, func(n string) bool { return n == requested }), nil
}

func composeService(w *workload, o Options) (service, error) {
	s, g, err := newService(w, o.Simulated)
	if err != nil {
		return s, err
	}
	s.Ports = []string{"127.0.0.1::" + strconv.Itoa(w.fn.Port)} // any free port
	s.SecurityOpt = []string{"no-new-privileges:true"}
	s.Restart = cmp.Or(w.fn.Restart, function.DefaultRestart)
	for i := range s.Volumes {
		if s.Volumes[i].Type == "bind" && o.Compose != 1 { // version 1 never creates missing folders for bind mounts
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

// newService returns the parts of a service that are the same for Compose and for a swarm.
func newService(w *workload, simulated bool) (service, guest, error) {
	g, err := newGuest(w, simulated)
	if err != nil {
		return service{}, g, err
	}
	s := service{
		Image: literal(w.fn.Image), User: user, Entrypoint: lists.Map(w.fn.Command, literal), Environment: g.env, Volumes: g.mounts,
		CapDrop: []string{"ALL"}, ReadOnly: w.fn.ReadOnly,
		Networks: map[string]network{"default": {Aliases: []string{w.group}}}, Labels: w.labels(),
	}
	return s, g, nil
}

// hostLimits returns the container's limits of host resources.
func (w *workload) hostLimits() *hostLimits {
	l := w.fn.Limits
	out := &hostLimits{Pids: cmp.Or(l.Pids, instance.DefaultPids)}
	if l.CPUs > 0 {
		out.CPUs = csvfile.Format(l.CPUs)
	}
	if l.Memory > 0 {
		out.Memory = strconv.FormatInt(int64(l.Memory), 10) + "b"
	}
	return out
}
