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
	"github.com/gfaas/gfaas/pkg/lists"
)

// Variable is the environment variable that selects GPUs for CUDA programs. Commands treat it as a default
// for --gpu.
const Variable = "CUDA_VISIBLE_DEVICES"

// identity is a GPU and its UUID.
type identity struct {
	uuid   string
	device gpu.Device
}

// identities returns the GPUs of this host, real and simulated.
func identities() (all []identity, err error) {
	if preload.HasNVIDIA() {
		found, err := nvml.NVML{}.Devices(context.Background())
		if err != nil {
			return nil, err
		}
		all = lists.Map(found, func(d nvml.Device) identity { return identity{d.UUID, gpu.Device{Index: d.Index}} })
	}
	for i := range Count(true) {
		all = append(all, identity{simgpu.UUID(i), gpu.Device{Index: i, Simulated: true}})
	}
	return all, nil
}

// Find returns the GPU with a name: a name that gpu.ParseDevice accepts, or a UUID or its prefix, as in
// CUDA_VISIBLE_DEVICES. It returns an error if this host has no such GPU. Source is the origin of the name,
// for error messages.
func Find(source, name string) (gpu.Device, error) {
	name = strings.TrimSpace(name)
	if !isUUID(name) {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return d, cli.Usagef("%s: %w", source, err)
		}
		return d, checkExists(d)
	}
	all, err := identities()
	if err != nil {
		return gpu.Device{}, err
	}
	return matchUUID(source, name, all)
}

// isUUID reports whether a name is a prefix of a whole GPU's UUID.
func isUUID(name string) bool { return len(name) > 4 && strings.EqualFold(name[:4], "GPU-") }

// matchUUID returns the GPU whose UUID begins with a name. It returns an error unless there is exactly one.
func matchUUID(source, name string, all []identity) (gpu.Device, error) {
	found := lists.Filter(all, func(one identity) bool {
		return len(name) <= len(one.uuid) && strings.EqualFold(one.uuid[:len(name)], name)
	})
	switch {
	case len(found) == 0:
		return gpu.Device{}, cli.Fail(cli.ExitUnavailable, "nvidia-smi -L lists the GPUs of this machine",
			fmt.Errorf("%s: GPU %s cannot be used: no UUID of a GPU of this machine begins like that", source, name))
	case len(found) > 1:
		return gpu.Device{}, cli.Usagef("%s: the UUIDs of %d GPUs begin with %s: expected more digits", source, len(found), name)
	}
	return found[0].device, nil
}

// Choose returns the GPUs for a command: those in list, the value of --gpu or, if list is empty, those in
// CUDA_VISIBLE_DEVICES. It returns none if neither is set, and a usage error if CUDA_VISIBLE_DEVICES hides a
// GPU of the list.
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
		return visibleDevices(Default() == "sim")
	}
	for _, d := range named[1:] {
		if d.Simulated != named[0].Simulated {
			return nil, cli.Usagef("--gpu %s: %s and %s cannot be used together: one is simulated", list, named[0], d)
		}
	}
	return named, checkVisible("--gpu names", named)
}

// visibleDevices returns the GPUs in CUDA_VISIBLE_DEVICES, or none if the variable is not set. It returns an error if the
// variable hides all GPUs.
func visibleDevices(simulated bool) ([]gpu.Device, error) {
	devices, set, err := visible(simulated)
	if err == nil && set && len(devices) == 0 {
		err = cli.Fail(cli.ExitUnavailable, "unset "+Variable+", or set it to a GPU", fmt.Errorf("%s=%s hides all GPUs", Variable, os.Getenv(Variable)))
	}
	return devices, err
}

// ChooseOne returns the GPU for a command that uses one. For an empty name, it returns the default.
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
	return gpu.Device{}, cli.Fail(cli.ExitUsage, fmt.Sprintf("choose one GPU, for example with --gpu %s", chosen[0]),
		fmt.Errorf("%s=%s names %d GPUs: expected one", Variable, os.Getenv(Variable), len(chosen)))
}

// Permitted returns a usage error if CUDA_VISIBLE_DEVICES hides any of the GPUs. The message begins with the
// words in subject, such as "the plan names".
func Permitted(subject string, names []string) error {
	var devices []gpu.Device
	for _, name := range names {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return err
		}
		devices = append(devices, d)
	}
	return checkVisible(subject, devices)
}

// checkVisible implements Permitted for devices of the same kind, real or simulated.
func checkVisible(subject string, devices []gpu.Device) error {
	if len(devices) == 0 {
		return nil
	}
	shown, set, err := visible(devices[0].Simulated)
	if err != nil || !set {
		return err
	}
	for _, d := range devices {
		if !slices.Contains(shown, d) {
			return cli.Fail(cli.ExitUsage, "unset "+Variable+", or add this GPU to it",
				fmt.Errorf("%s GPU %s, which %s=%s hides", subject, d, Variable, os.Getenv(Variable)))
		}
	}
	return nil
}

// visible returns the GPUs in CUDA_VISIBLE_DEVICES. Its numbers are indices of simulated or of real GPUs, in the
// order of nvidia-smi. Like the driver, visible stops at the first negative number; it returns an error for
// any other entry that names no GPU. Set is false if the variable does not express a choice of the user: it
// is missing, or gfaas set it for the slice of this process.
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
