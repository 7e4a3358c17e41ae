package profile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/measure/local"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/rollout"
)

// platform holds the functions that depend on the host. Tests replace them.
type platform struct {
	// gpus returns the canonical names of the GPUs in a list, or the default GPUs if the list is empty.
	gpus func(list string) (string, error)
	// runDir returns the directory that contains the GPU locks.
	runDir func() string
	// open returns a testbed for each group of GPUs, which this run has locked for the job.
	open func(ctx context.Context, groups [][]string, job measure.Job) ([]testbed.GPUs, error)
}

// realPlatform returns the platform of this host.
func realPlatform(env *cli.Env) platform {
	return platform{gpus: chooseGPUs, runDir: cli.RunDir,
		open: func(ctx context.Context, groups [][]string, job measure.Job) ([]testbed.GPUs, error) {
			return openTestbeds(ctx, env, groups, job)
		},
	}
}

// chooseGPUs returns the names of the GPUs in a list. For an empty list, it returns the GPUs in
// CUDA_VISIBLE_DEVICES, or the first GPU.
func chooseGPUs(list string) (string, error) {
	chosen, err := devices.Choose(list)
	if err != nil {
		return "", err
	}
	return cmp.Or(strings.Join(lists.Map(chosen, gpu.Device.String), ","), devices.Default()), nil
}

// gpuModel returns the model of GPUs for the column gpu of a profile: empty if the driver does not tell it, and
// "sim" for simulated GPUs, so that their figures cannot be mistaken for a GPU's. It returns a usage error if the
// models differ, because rows of several models are not comparable.
func gpuModel(ctx context.Context, names []string) (string, error) {
	if simulated := (gpu.Device{Simulated: true}).String(); strings.HasPrefix(names[0], simulated) { // so all are simulated
		return simulated, nil
	}
	known, err := devices.List(ctx, strings.Join(names, ","))
	if err != nil {
		return "", nil
	}
	for _, g := range known[1:] {
		if first := known[0]; g.Model != first.Model {
			return "", cli.Usagef("--gpu: %s is %q and %s is %q: expected GPUs of one model", first.Name, first.Model, g.Name, g.Model)
		}
	}
	return known[0].Model, nil
}

// openTestbeds checks the GPUs and returns a testbed for each group. It stops the instances of killed runs.
func openTestbeds(ctx context.Context, env *cli.Env, groups [][]string, job measure.Job) ([]testbed.GPUs, error) {
	for _, name := range slices.Concat(groups...) {
		if err := devices.Check(name); err != nil {
			return nil, err
		}
	}
	// An instance that spans several GPUs also uses the GPUs after the named one.
	if err := devices.Permitted("this run would use", slices.Concat(groups...)); err != nil {
		return nil, err
	}
	launcher, err := host.Starter(ctx, env, cli.RunDir(), job.StartTimeout)
	if err != nil {
		return nil, err
	}
	if err := rollout.StopMeasured(ctx, launcher, cli.RunDir()); err != nil {
		return nil, err
	}
	kernels := kernelUsers(cli.RunDir(), job.Functions)
	var testbeds []testbed.GPUs
	for _, names := range groups {
		client := fnhttp.NewClient()
		ids := lists.Map(rollout.MeasuredNames(names[0], job.Instances), rollout.MeasuredID)
		t, err := local.New(ctx, local.Config{
			Launcher: launcher, Invoker: client, Encode: encoder(client), Status: tokend.Dial(cli.RunDir()).Status,
			Kernels: kernels, Processes: processes, Meter: newMeter,
		}, names, ids)
		if err != nil {
			return nil, err
		}
		testbeds = append(testbeds, t)
	}
	return testbeds, nil
}

// encoder returns a function that encodes requests by the instance's contract.
func encoder(client *fnhttp.Client) func(context.Context, instance.Record, testbed.Request) (http.Header, []byte, error) {
	return func(ctx context.Context, r instance.Record, q testbed.Request) (http.Header, []byte, error) {
		body, err := bodyFor(ctx, client, r, q.Body)
		if err != nil {
			return nil, nil, err
		}
		header, body, err := fnhttp.Batched(r.Contract, body, q.Batch)
		if err != nil {
			return nil, nil, &testbed.BodyError{Err: err}
		}
		return header, body, nil
	}
}

// bodyFor returns the given body, or a default body for the instance if it is empty.
func bodyFor(ctx context.Context, client *fnhttp.Client, r instance.Record, given []byte) ([]byte, error) {
	if len(given) > 0 {
		return given, nil
	}
	body, err := client.DefaultBody(ctx, r)
	if err != nil {
		return nil, &testbed.BodyError{Err: fmt.Errorf("--body is missing, and there is no default body under the contract %s: %w", r.Contract, err)}
	}
	return body, nil
}

// meters measures several GPUs. It omits GPUs without counters.
type meters []*nvml.Meter

func newMeter(names []string) testbed.Meter {
	var list meters
	for _, name := range names {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			continue
		}
		library := nvml.NVML{}
		if d.Simulated {
			library.Simulated = devices.SimulatedNVML()
		}
		if meter, err := library.NewMeter(d); err == nil {
			list = append(list, meter)
		}
	}
	return list
}

func (m meters) Sample() {
	for _, one := range m {
		one.Sample()
	}
}

// Close stops the measurement and returns the mean over the GPUs.
func (m meters) Close() (mean testbed.Activity) {
	for _, one := range m {
		f, n := one.Close(), float64(len(m))
		mean.UtilPct += f.UtilPct / n
		mean.OccupancyPct += f.OccupancyPct / n
		mean.PowerW += f.PowerW / n
	}
	return mean
}

// processes returns the processes on the GPUs that the drivers report.
func processes(names []string) (pids []int) {
	drivers := devices.NewOccupancy()
	defer drivers.Close()
	for _, name := range names {
		used, _ := drivers.Processes(name) // empty if they are unknown
		pids = slices.AppendSeq(pids, maps.Keys(used))
	}
	return pids
}
