package manifest

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/lists"
)

// Settings of the machine that runs a Compose or stack file, as gfaas register writes them. The text
// after :- is the default.
const (
	runDir = "${GFAAS_RUN_DIR:-/run/gfaas}"
	libDir = "${GFAAS_LIB_DIR:-/usr/local/lib/gfaas}"
	pkgDir = "${GFAAS_LIB_DIR:-/usr/lib/gfaas}" // of the package, for nodes on which gfaas register does not run
	simDir = "${GFAAS_SIM_DIR:-/dev/shm/gfaas-sim-0}"
	simGPU = "${GFAAS_SIM_GPU:-}"
	mpsDir = "${CUDA_MPS_PIPE_DIRECTORY:-/run/gfaas/mps/pipe}"
	user   = "${GFAAS_USER:-}" // empty means the image's user
	secret = "${GFAAS_SECRET:?gfaas register PLAN.json writes the settings of this file}"
)

// Paths of GPU-related files in a container.
const (
	insideMPS    = "/tmp/nvidia-mps"
	insideDevice = preload.InsideDevice // files of the simulated GPU
)

// guest holds the settings of an instance's container with which the machine's token daemon enforces
// its slice. They are those of gfaas's own Docker runtime, which also knows the image's environment.
type guest struct {
	env    map[string]string
	mounts []object // folders and files of the machine
	mps    bool     // the container needs access to MPS, for its share of the SMs
}

func newGuest(w *workload, simulated bool) (guest, error) {
	if !instance.ValidID(w.ID) {
		return guest{}, fmt.Errorf("invalid instance ID %q in the plan: expected at most 63 letters, digits, dots, dashes and underscores", w.ID)
	}
	own := map[string]string{}
	for name, value := range w.fn.Env {
		own[name] = literal(value)
	}
	own["PORT"] = strconv.Itoa(w.fn.Port)
	key, socketDir, libs := secret, runDir+"/client/"+w.ID, libDir
	if w.signed != "" {
		key, socketDir, libs = w.secret, runDir+"/granted", pkgDir
	}
	grant := preload.Grant{
		Socket: preload.InsideSocket + "/token.sock", Instance: w.ID, Secret: key, Signed: w.signed, SMPct: w.SMPct,
		Libs: preload.Libs{Hook: preload.InsideHook, SimDir: preload.InsideSim}, Env: own, Mem: gpu.Bytes(w.roundedUp()) * gpu.MiB,
	}
	for _, index := range w.gpus {
		name := "sim:" + strconv.Itoa(index)
		if !simulated {
			// A container numbers its GPUs from 0, in the order of the machine.
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
	g := guest{env: own, mounts: []object{
		readOnly(socketDir, preload.InsideSocket), readOnly(libs+"/"+preload.HookFile, preload.InsideHook),
	}}
	switch g.mps = !simulated && w.SMPct < 100; {
	case simulated:
		own["GFAAS_SIM_DIR"], own["GFAAS_SIM_GPU"] = insideDevice, simGPU
		g.mounts = append(g.mounts, readOnly(libs+"/sim", preload.InsideSim), bind(simDir, insideDevice))
	case g.mps:
		grant.MPSPipeDir = insideMPS
		g.mounts = append(g.mounts, bind(mpsDir, insideMPS))
	}
	g.mounts = append(g.mounts, readOnly(socketDir+"/"+preload.PreloadFile, preload.InsidePreload))
	if w.fn.ReadOnly {
		g.mounts = append(g.mounts, object{"type": "tmpfs", "target": "/tmp"}) // counts as the container's memory
	}
	slice, err := preload.Environ(grant)
	if err != nil {
		return guest{}, fmt.Errorf("instance %s: %w", w.ID, err)
	}
	maps.Copy(own, slice)
	return g, nil
}

// bind returns a mount of a folder or a file of the machine. If it is missing, the container must not start,
// because Docker would create a folder owned by root in its place.
func bind(source, target string) object {
	return object{"type": "bind", "source": source, "target": target}
}

// readOnly returns a bind mount that the container cannot change.
func readOnly(source, target string) object {
	m := bind(source, target)
	m["read_only"] = true
	return m
}

// literal escapes a text so that Compose substitutes no variables.
func literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// labels returns the labels that identify an instance's container, also to gfaas ps and gfaas down.
func (w *workload) labels() map[string]string {
	return map[string]string{instance.LabelInstance: w.ID, instance.LabelFunction: literal(w.Function), "gfaas.slice": w.slice()}
}

// devices returns the instance's GPUs on its node: their UUIDs if all are known, and otherwise their
// indexes.
func (w *workload) devices() []string {
	if len(w.uuids) == len(w.gpus) {
		return w.uuids
	}
	return lists.Map(w.gpus, strconv.Itoa)
}
