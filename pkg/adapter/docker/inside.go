package docker

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// inside is what a container is given of this machine.
type inside struct {
	socket  string       // the folder of the instance's socket, on this machine
	libs    preload.Libs // as the container sees them
	gpus    []string     // as the container sees them
	mounts  []mount.Mount
	devices []container.DeviceRequest
	ipc     container.IpcMode
	models  string            // the model daemon's socket; empty without a model
	mps     string            // pipe directory of the MPS daemon; empty without one
	env     map[string]string // further settings
}

func bind(source, target string, writable bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: !writable}
}

// inside works out mounts and devices for an instance of that id on these GPUs.
func (r *Runtime) inside(instance string, gpus []string, mpsPipes string) (inside, error) {
	var devices []gpu.Device
	simulated := false
	for _, name := range gpus {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return inside{}, err
		}
		simulated = simulated || d.Simulated
		devices = append(devices, d)
	}
	run, err := r.socketDir(instance)
	if err != nil {
		return inside{}, fmt.Errorf("the token daemon's client folder: %w", err)
	}
	in := inside{gpus: gpus, env: map[string]string{}}
	in.socket = run
	in.mounts = append(in.mounts, bind(run, preload.InsideSocket, false))
	if r.config.Libs.Hook != "" {
		in.libs.Hook = preload.InsideHook
		in.mounts = append(in.mounts, bind(r.config.Libs.Hook, preload.InsideHook, false))
	}
	if simulated {
		return in, in.addSimulated(r.config.Libs)
	}
	in.addNVIDIA(devices)
	in.addMPS(mpsPipes)
	return in, nil
}

// addSimulated mounts the driver and the memory of the simulated device,
// which all processes of a user share.
func (in *inside) addSimulated(libs preload.Libs) error {
	if libs.SimDir != "" {
		in.libs.SimDir = preload.InsideSim
		in.mounts = append(in.mounts, bind(libs.SimDir, preload.InsideSim, false))
	}
	dir, err := simgpu.Ensure()
	if err != nil {
		return fmt.Errorf("the simulated device's folder: %w", err)
	}
	in.mounts = append(in.mounts, bind(dir, dir, true))
	in.env["GFAAS_SIM_DIR"] = dir
	if shape := os.Getenv("GFAAS_SIM_GPU"); shape != "" {
		in.env["GFAAS_SIM_GPU"] = shape
	}
	return nil
}

// addModels lets the container reach the model daemon, by the socket that speaks
// for its tenant alone, and gives it the client library.
func (in *inside) addModels(folder string, libs preload.Libs) {
	if folder == "" {
		return
	}
	in.mounts = append(in.mounts, bind(folder, preload.InsideModels, false))
	in.models = preload.InsideModels + "/model.sock"
	if libs.Model != "" {
		in.libs.Model = preload.InsideClient + preload.ModelFile
		in.mounts = append(in.mounts, bind(libs.Model, in.libs.Model, false))
	}
	if libs.Python != "" {
		in.libs.Python = preload.InsideClient + "python"
		in.mounts = append(in.mounts, bind(libs.Python, in.libs.Python, false))
	}
}

// addNVIDIA asks for devices. The container counts its own from 0 by their bus, as the
// machine does, whatever the order in which they are asked for.
func (in *inside) addNVIDIA(devices []gpu.Device) {
	var ids []string
	in.gpus = nil
	for _, d := range devices {
		number := 0
		for i, other := range devices {
			if other.Index < d.Index || other.Index == d.Index && i < len(ids) { // MIG instances have no number
				number++
			}
		}
		ids = append(ids, d.Visible())
		in.gpus = append(in.gpus, strconv.Itoa(number))
	}
	in.devices = []container.DeviceRequest{{
		Driver: "nvidia", DeviceIDs: ids, Capabilities: [][]string{{"gpu", "compute", "utility"}},
	}}
}

// addMPS lets the container reach the MPS daemon it is to run under: the one
// of that folder, else its owner's, where there is one.
func (in *inside) addMPS(pipes string) {
	if pipes == "" {
		status := mps.Probe()
		if !status.Running() {
			return
		}
		pipes = status.PipeDir
	}
	in.mounts = append(in.mounts, bind(pipes, pipes, true))
	in.ipc = container.IPCModeHost
	in.mps = pipes
}

// environ is what is added to the image's environment, and the whole of it.
func environ(spec instance.Spec, image []string, in inside) (own []string, whole map[string]string, err error) {
	whole = map[string]string{}
	for _, entry := range image {
		name, value, _ := strings.Cut(entry, "=")
		whole[name] = value
	}
	added := maps.Clone(in.env)
	maps.Copy(added, spec.Env)
	// The device's memory is where it was mounted, whatever the function says.
	if dir, ok := in.env["GFAAS_SIM_DIR"]; ok {
		added["GFAAS_SIM_DIR"] = dir
	}
	added["PORT"] = strconv.Itoa(spec.Port)
	maps.Copy(whole, added)
	ours, err := preload.Environ(preload.Grant{
		Socket: preload.InsideSocket + "/token.sock", Instance: spec.ID, Secret: spec.Secret,
		GPU: in.gpus, SMPct: spec.Slice.SMPct, Libs: in.libs, Env: whole,
		MPSPipeDir: in.mps, Mem: spec.Slice.Mem, Oversubscribe: spec.Oversubscribe,
	})
	if err != nil {
		return nil, nil, err
	}
	if in.models != "" {
		maps.Copy(whole, ours)
		maps.Copy(ours, preload.ModelEnviron(in.models, in.libs, whole))
	}
	maps.Copy(added, ours)
	maps.Copy(whole, ours)
	for _, name := range slices.Sorted(maps.Keys(added)) {
		own = append(own, name+"="+added[name])
	}
	return own, whole, nil
}
