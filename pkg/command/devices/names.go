package devices

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// Variable is the environment variable by which users of CUDA choose GPUs. Commands that
// use GPUs heed it like --gpu.
const Variable = "CUDA_VISIBLE_DEVICES"

// identity is a GPU and its UUID.
type identity struct {
	uuid   string
	device gpu.Device
}

// identities are the GPUs of this machine: the driver's, and the simulated ones.
func identities() (all []identity, err error) {
	if preload.HasNVIDIA() {
		found, err := nvml.NVML{}.Devices(context.Background())
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			all = append(all, identity{d.UUID, gpu.Device{Index: d.Index}})
		}
	}
	for i := range Count(true) {
		all = append(all, identity{simgpu.UUID(i), gpu.Device{Index: i, Simulated: true}})
	}
	return all, nil
}

// Find returns the GPU that a name means: one that gpu.ParseDevice reads, or the UUID of
// a GPU or the beginning of one, as CUDA_VISIBLE_DEVICES takes it. It fails if this
// machine has no such GPU. Source is where the name comes from, for messages.
func Find(source, name string) (gpu.Device, error) {
	name = strings.TrimSpace(name)
	if !isUUID(name) {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return d, cli.Usagef("%s: %w", source, err)
		}
		return d, there(d)
	}
	all, err := identities()
	if err != nil {
		return gpu.Device{}, err
	}
	return match(source, name, all)
}

// isUUID reports whether a name is the UUID of a whole GPU, or its beginning.
func isUUID(name string) bool { return len(name) > 4 && strings.EqualFold(name[:4], "GPU-") }

// match returns the one GPU whose UUID begins with a name.
func match(source, name string, all []identity) (gpu.Device, error) {
	var found []identity
	for _, one := range all {
		if len(name) <= len(one.uuid) && strings.EqualFold(one.uuid[:len(name)], name) {
			found = append(found, one)
		}
	}
	switch {
	case len(found) == 0:
		return gpu.Device{}, cli.Fail(cli.ExitUnavailable, "nvidia-smi -L lists the GPUs that are there",
			fmt.Errorf("%s: GPU %s cannot be used: no GPU of this machine has a UUID that begins so", source, name))
	case len(found) > 1:
		return gpu.Device{}, cli.Usagef("%s: %s is the beginning of the UUIDs of %d GPUs: give more of it", source, name, len(found))
	}
	return found[0].device, nil
}

// Choose returns the GPUs that a command is to use: those that a list after --gpu names
// or, without one, those that CUDA_VISIBLE_DEVICES names; none if neither is given. A
// GPU after --gpu that CUDA_VISIBLE_DEVICES hides is wrong usage.
func Choose(list string) ([]gpu.Device, error) {
	var named []gpu.Device
	if list != "" {
		for name := range strings.SplitSeq(list, ",") {
			d, err := Find("--gpu", name)
			if err != nil {
				return nil, err
			}
			if slices.Contains(named, d) {
				return nil, cli.Usagef("--gpu %s: %s is given twice", list, d)
			}
			named = append(named, d)
		}
	}
	if len(named) == 0 {
		return all(Default() == "sim")
	}
	for _, d := range named[1:] {
		if d.Simulated != named[0].Simulated {
			return nil, cli.Usagef("--gpu %s: %s and %s cannot be used together: one is simulated", list, named[0], d)
		}
	}
	return named, hidden("--gpu names", named)
}

// all are the GPUs that CUDA_VISIBLE_DEVICES names, none where it is not set. It fails
// where the variable is set and hides all.
func all(simulated bool) ([]gpu.Device, error) {
	devices, set, err := visible(simulated)
	if err == nil && set && len(devices) == 0 {
		err = cli.Fail(cli.ExitUnavailable, "unset "+Variable+", or have it name a GPU", fmt.Errorf("%s=%s hides all GPUs", Variable, os.Getenv(Variable)))
	}
	return devices, err
}

// ChooseOne is Choose for a command that uses one GPU; empty means its default.
func ChooseOne(name string) (gpu.Device, error) {
	chosen, err := Choose(name)
	switch {
	case err != nil:
		return gpu.Device{}, err
	case len(chosen) == 1:
		return chosen[0], nil
	case len(chosen) == 0:
		return gpu.ParseDevice(Default())
	case name != "":
		return gpu.Device{}, cli.Usagef("--gpu %s: expected one GPU", name)
	}
	return gpu.Device{}, cli.Fail(cli.ExitUsage, fmt.Sprintf("choose one of them, as with --gpu %s", chosen[0]),
		fmt.Errorf("%s=%s names %d GPUs: expected one", Variable, os.Getenv(Variable), len(chosen)))
}

// Permitted refuses GPUs that CUDA_VISIBLE_DEVICES hides (wrong usage). What is the
// subject and the verb of the message, such as "the plan names".
func Permitted(what string, names []string) error {
	var devices []gpu.Device
	for _, name := range names {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return err
		}
		devices = append(devices, d)
	}
	return hidden(what, devices)
}

// hidden is Permitted for devices that are all simulated, or none.
func hidden(what string, devices []gpu.Device) error {
	if len(devices) == 0 {
		return nil
	}
	shown, set, err := visible(devices[0].Simulated)
	if err != nil || !set {
		return err
	}
	for _, d := range devices {
		if !slices.Contains(shown, d) {
			return cli.Fail(cli.ExitUsage, "unset "+Variable+", or make the two agree",
				fmt.Errorf("%s GPU %s, which %s=%s hides", what, d, Variable, os.Getenv(Variable)))
		}
	}
	return nil
}

// visible are the GPUs that CUDA_VISIBLE_DEVICES names; its numbers are of simulated GPUs
// or of real ones, which are counted as nvidia-smi counts them. Like the driver, it reads
// as far as the first negative number; other entries that name no GPU are refused.
// Set is false where no user has chosen: there is no such variable, or gfaas has set it
// for the slice that this process is in.
func visible(simulated bool) (devices []gpu.Device, set bool, err error) {
	list, set := os.LookupEnv(Variable)
	if inherited := os.Getenv("GFAAS_DEVICES"); !set || inherited != "" && inherited == list {
		return nil, false, nil
	}
	if none := strings.TrimSpace(list); none == "" || none == "NoDevFiles" {
		return nil, true, nil
	}
	source := Variable + "=" + list
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "-") {
			break
		}
		if simulated && !isUUID(name) && !strings.HasPrefix(name, "MIG-") {
			name = "sim:" + name
		}
		d, err := Find(source, name)
		if err != nil {
			return nil, true, err
		}
		if slices.Contains(devices, d) {
			return nil, true, cli.Usagef("%s: %s is given twice", source, d)
		}
		devices = append(devices, d)
	}
	return devices, true, nil
}
