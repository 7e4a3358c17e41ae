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

// Inside describes the resources that a container gets, by their names inside the container.
type Inside struct {
	Socket string // path of the token daemon's socket
	Libs   preload.Libs
	GPUs   []string
	Models string            // path of the model daemon's socket; empty without a model
	MPS    string            // pipe directory of the MPS daemon; empty without MPS
	Env    map[string]string // further environment variables, which the function's settings may override
	Fixed  map[string]string // further environment variables, which they must not override
}

// containerResources describes the resources of this machine that a container gets.
type containerResources struct {
	Inside
	socket  string // folder of the instance's socket, outside the container
	mounts  []mount.Mount
	devices []container.DeviceRequest
	ipc     container.IpcMode
}

// Values of bind's argument writable.
const (
	bindReadOnly = false
	bindWritable = true
)

// bind returns a mount of a folder or file of the host.
func bind(source, target string, writable bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: !writable}
}

// resources returns the mounts and devices for an instance on the given GPUs.
func (r *Runtime) resources(instance string, gpus []string, mpsPipes string) (containerResources, error) {
	var devices []gpu.Device
	simulated := false
	for _, name := range gpus {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return containerResources{}, err
		}
		simulated = simulated || d.Simulated
		devices = append(devices, d)
	}
	socket, err := r.socketDir(instance)
	if err != nil {
		return containerResources{}, fmt.Errorf("create the folder of the instance's socket: %w", err)
	}
	in := containerResources{Inside: Inside{Socket: preload.InsideSocket + "/token.sock", GPUs: gpus, Env: map[string]string{}, Fixed: map[string]string{}}, socket: socket}
	in.mounts = append(in.mounts, bind(socket, preload.InsideSocket, bindReadOnly))
	if r.config.Libs.Hook != "" {
		in.Libs.Hook = preload.InsideHook
		in.mounts = append(in.mounts, bind(r.config.Libs.Hook, preload.InsideHook, bindReadOnly))
	}
	if simulated {
		return in, in.addSimulated(r.config.Libs)
	}
	in.addNVIDIA(devices)
	in.addMPS(mpsPipes)
	return in, nil
}

// addSimulated mounts the driver and the memory of the simulated GPU, which all processes
// of the user share.
func (in *containerResources) addSimulated(libs preload.Libs) error {
	if libs.SimDir != "" {
		in.Libs.SimDir = preload.InsideSim
		in.mounts = append(in.mounts, bind(libs.SimDir, preload.InsideSim, bindReadOnly))
	}
	dir, err := simgpu.Ensure()
	if err != nil {
		return fmt.Errorf("create the folder of the simulated GPU: %w", err)
	}
	in.mounts = append(in.mounts, bind(dir, dir, bindWritable))
	in.Fixed["GFAAS_SIM_DIR"] = dir // where it is mounted
	if shape := os.Getenv("GFAAS_SIM_GPU"); shape != "" {
		in.Env["GFAAS_SIM_GPU"] = shape
	}
	return nil
}

// addModels mounts the client library and the model daemon's socket for the instance's
// tenant.
func (in *containerResources) addModels(folder string, libs preload.Libs) {
	if folder == "" {
		return
	}
	in.mounts = append(in.mounts, bind(folder, preload.InsideModels, bindReadOnly))
	in.Models = preload.InsideModels + "/model.sock"
	if libs.Model != "" {
		in.Libs.Model = preload.InsideClient + preload.ModelFile
		in.mounts = append(in.mounts, bind(libs.Model, in.Libs.Model, bindReadOnly))
	}
	if libs.Python != "" {
		in.Libs.Python = preload.InsideClient + "python"
		in.mounts = append(in.mounts, bind(libs.Python, in.Libs.Python, bindReadOnly))
	}
}

// NumbersInside returns the names that devices have in a container, which numbers its devices
// from 0 in the order of their buses, whatever the order of the request.
func NumbersInside(devices []gpu.Device) (names []string) {
	for i, d := range devices {
		number := 0
		for j, other := range devices {
			if other.Index < d.Index || other.Index == d.Index && j < i { // MIG instances have no index
				number++
			}
		}
		names = append(names, strconv.Itoa(number))
	}
	return names
}

// addNVIDIA requests the devices.
func (in *containerResources) addNVIDIA(devices []gpu.Device) {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.Visible())
	}
	in.GPUs = NumbersInside(devices)
	in.devices = []container.DeviceRequest{{
		Driver: "nvidia", DeviceIDs: ids, Capabilities: [][]string{{"gpu", "compute", "utility"}},
	}}
}

// addMPS mounts the pipe directory of an MPS daemon: the given one, or, if pipes is empty,
// that of the running daemon, if any.
func (in *containerResources) addMPS(pipes string) {
	if pipes == "" {
		status := mps.Probe()
		if !status.Running() {
			return
		}
		pipes = status.PipeDir
	}
	in.mounts = append(in.mounts, bind(pipes, pipes, bindWritable))
	in.ipc = container.IPCModeHost
	in.MPS = pipes
}

// Environ returns the variables to add to the image's environment, and the resulting
// environment.
func (in Inside) Environ(spec instance.Spec, image []string) (own []string, whole map[string]string, err error) {
	whole = map[string]string{}
	for _, entry := range image {
		name, value, _ := strings.Cut(entry, "=")
		whole[name] = value
	}
	added := map[string]string{}
	maps.Copy(added, in.Env)
	maps.Copy(added, spec.Env)
	maps.Copy(added, in.Fixed)
	added["PORT"] = strconv.Itoa(spec.Port)
	maps.Copy(whole, added)
	ours, err := preload.Environ(preload.Grant{
		Socket: in.Socket, Instance: spec.ID, Secret: spec.Secret, Signed: spec.Grant,
		GPU: in.GPUs, SMPct: spec.Slice.SMPct, Libs: in.Libs, Env: whole,
		MPSPipeDir: in.MPS, Mem: spec.Slice.Mem, Oversubscribe: spec.Oversubscribe, AllSMs: spec.AllSMs,
	})
	if err != nil {
		return nil, nil, err
	}
	if in.Models != "" {
		maps.Copy(whole, ours)
		maps.Copy(ours, preload.ModelEnviron(in.Models, in.Libs, whole))
	}
	maps.Copy(added, ours)
	maps.Copy(whole, ours)
	for _, name := range slices.Sorted(maps.Keys(added)) {
		own = append(own, name+"="+added[name])
	}
	return own, whole, nil
}
