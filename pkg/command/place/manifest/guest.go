package manifest

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Settings of the machine that runs a Compose or a stack file, as gfaas register
// writes them; behind :- is what they are without.
const (
	runDir = "${GFAAS_RUN_DIR:-/run/gfaas}"
	libDir = "${GFAAS_LIB_DIR:-/usr/local/lib/gfaas}"
	simDir = "${GFAAS_SIM_DIR:-/dev/shm/gfaas-sim-0}"
	simGPU = "${GFAAS_SIM_GPU:-}"
	mpsDir = "${CUDA_MPS_PIPE_DIRECTORY:-/run/gfaas/mps/pipe}"
	user   = "${GFAAS_USER:-}" // empty is the image's
	secret = "${GFAAS_SECRET:?gfaas register PLAN.json writes the settings of this file}"
)

// Where a container has what belongs to its GPUs.
const (
	insideMPS    = "/tmp/nvidia-mps"
	insideDevice = preload.InsideDevice // the files of the simulated one
)

// mount is a folder or file of the machine. One that is not there is an error: what
// Docker made in its place would be root's.
type mount struct {
	Type     string     `yaml:"type"`
	Source   string     `yaml:"source,omitempty"`
	Target   string     `yaml:"target"`
	ReadOnly bool       `yaml:"read_only,omitempty"`
	Bind     *bindMount `yaml:"bind,omitempty"`
}

type bindMount struct {
	CreateHostPath bool `yaml:"create_host_path"`
}

// guest is what the container of an instance is given of its machine, so that the
// machine's token daemon holds it to its slice: what gfaas's own Docker runtime gives
// it, which knows the image's environment as well.
type guest struct {
	env    map[string]string
	mounts []mount
	mps    bool // MPS has to let it in, for its share of the SMs
}

func newGuest(w *workload, simulated bool) (guest, error) {
	if !instance.ValidID(w.ID) {
		return guest{}, fmt.Errorf("the plan's instance %q cannot be called so: expected at most 63 letters, digits, dots, dashes and underscores", w.ID)
	}
	own := map[string]string{}
	for name, value := range w.fn.Env {
		own[name] = literal(value)
	}
	own["PORT"] = strconv.Itoa(w.fn.Port)
	grant := preload.Grant{
		Socket: preload.InsideSocket + "/token.sock", Instance: w.ID, Secret: secret, SMPct: w.SMPct,
		Libs: preload.Libs{Hook: preload.InsideHook, SimDir: preload.InsideSim}, Env: own, Mem: gpu.Bytes(w.roundedUp()) * gpu.MiB,
	}
	for _, index := range w.gpus {
		name := "sim:" + strconv.Itoa(index)
		if !simulated {
			// A container counts its own from 0, in the order of the machine.
			number := 0
			for _, other := range w.gpus {
				if other < index {
					number++
				}
			}
			name = strconv.Itoa(number)
		}
		grant.GPU = append(grant.GPU, name)
	}
	g := guest{env: own, mounts: []mount{
		{Type: "bind", Source: runDir + "/client/" + w.ID, Target: preload.InsideSocket, ReadOnly: true},
		{Type: "bind", Source: libDir + "/" + preload.HookFile, Target: preload.InsideHook, ReadOnly: true},
	}}
	switch g.mps = !simulated && w.SMPct < 100; {
	case simulated:
		own["GFAAS_SIM_DIR"], own["GFAAS_SIM_GPU"] = insideDevice, simGPU
		g.mounts = append(g.mounts,
			mount{Type: "bind", Source: libDir + "/sim", Target: preload.InsideSim, ReadOnly: true},
			mount{Type: "bind", Source: simDir, Target: insideDevice})
	case g.mps:
		grant.MPSPipeDir = insideMPS
		g.mounts = append(g.mounts, mount{Type: "bind", Source: mpsDir, Target: insideMPS})
	}
	g.mounts = append(g.mounts, mount{Type: "bind", Source: runDir + "/client/" + w.ID + "/" + preload.PreloadFile, Target: preload.InsidePreload, ReadOnly: true})
	if w.fn.ReadOnly {
		g.mounts = append(g.mounts, mount{Type: "tmpfs", Target: "/tmp"}) // of the container's own memory
	}
	slice, err := preload.Environ(grant)
	if err != nil {
		return guest{}, fmt.Errorf("instance %s: %w", w.ID, err)
	}
	maps.Copy(own, slice)
	return g, nil
}

// literal keeps Compose from putting variables in.
func literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// literals is literal of each.
func literals(words []string) (out []string) {
	for _, word := range words {
		out = append(out, literal(word))
	}
	return out
}

// labels say which instance a container is, to gfaas ps and gfaas down too.
func (w *workload) labels() map[string]string {
	return map[string]string{instance.LabelInstance: w.ID, instance.LabelFunction: literal(w.Function), "gfaas.slice": w.slice()}
}

// devices are the instance's GPUs on its node: their UUIDs where all are known, else
// their numbers.
func (w *workload) devices() []string {
	if len(w.uuids) == len(w.gpus) {
		return w.uuids
	}
	return w.indexes()
}
