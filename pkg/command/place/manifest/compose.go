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
	services := object{}
	for _, w := range list {
		if services[w.name], err = composeService(w, o); err != nil {
			return Manifest{}, err
		}
	}
	file := object{"services": services}
	if o.Compose != 1 {
		file["name"] = "gfaas"
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

func composeService(w *workload, o Options) (object, error) {
	s, g, err := newService(w, o.Simulated)
	if err != nil {
		return nil, err
	}
	s["ports"] = []string{"127.0.0.1::" + strconv.Itoa(w.fn.Port)} // any free port
	s["security_opt"] = []string{"no-new-privileges:true"}
	s["restart"] = cmp.Or(w.fn.Restart, function.DefaultRestart)
	for _, m := range g.mounts {
		if m["type"] == "bind" && o.Compose != 1 { // version 1 never creates missing folders for bind mounts
			m["bind"] = object{"create_host_path": false}
		}
	}
	if g.mps {
		s["ipc"] = "host"
	}
	limits, resources := w.hostLimits(), object{}
	if o.Compose == 1 {
		s["pids_limit"] = limits["pids"]
		delete(limits, "pids")
	}
	if len(limits) > 0 {
		resources["limits"] = limits
	}
	if !o.Simulated {
		resources["reservations"] = object{"devices": []object{
			{"driver": "nvidia", "device_ids": w.devices(), "capabilities": []string{"gpu", "compute", "utility"}}}}
	}
	if len(resources) > 0 {
		s["deploy"] = object{"resources": resources}
	}
	return s, nil
}

// newService returns the parts of a service that are the same for Compose and for a swarm.
func newService(w *workload, simulated bool) (object, guest, error) {
	g, err := newGuest(w, simulated)
	if err != nil {
		return nil, g, err
	}
	s := object{
		"image": literal(w.fn.Image), "user": user, "environment": g.env, "volumes": g.mounts, "cap_drop": []string{"ALL"},
		"networks": object{"default": object{"aliases": []string{w.group}}}, "labels": w.labels(),
	}
	if len(w.fn.Command) > 0 {
		s["entrypoint"] = lists.Map(w.fn.Command, literal)
	}
	if w.fn.ReadOnly {
		s["read_only"] = true
	}
	return s, g, nil
}

// hostLimits returns the container's limits of host resources.
func (w *workload) hostLimits() object {
	l := w.fn.Limits
	out := object{"pids": cmp.Or(l.Pids, instance.DefaultPids)}
	if l.CPUs > 0 {
		out["cpus"] = csvfile.Format(l.CPUs)
	}
	if l.Memory > 0 {
		out["memory"] = strconv.FormatInt(int64(l.Memory), 10) + "b"
	}
	return out
}
