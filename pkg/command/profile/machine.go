package profile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// platform is what the command needs of the system it runs on. Tests put a fake
// in its place.
type platform struct {
	// gpus returns the names of the GPUs that a list names in whatever way, or of those
	// to measure on when it is empty.
	gpus func(list string) (string, error)
	// runDir holds the locks of GPUs under measurement.
	runDir func() string
	// open makes a testbed of each group of GPUs, which this run has locked, to
	// measure those functions on. An instance may take startTimeout to be ready.
	open func(ctx context.Context, groups [][]string, functions []function.Function, startTimeout time.Duration) ([]testbed.GPUs, error)
}

// lastLines is how much of an instance's output an error shows.
const lastLines = 10

// chooseGPUs finds the GPUs of this system that a list names; without one those that
// CUDA_VISIBLE_DEVICES names, or the first.
func chooseGPUs(list string) (string, error) {
	chosen, err := devices.Choose(list)
	if err != nil {
		return "", err
	}
	var names []string
	for _, d := range chosen {
		names = append(names, d.String())
	}
	return cmp.Or(strings.Join(names, ","), devices.Default()), nil
}

// realPlatform is this system.
func realPlatform(env *cli.Env) platform {
	return platform{
		gpus:   chooseGPUs,
		runDir: cli.RunDir,
		open: func(ctx context.Context, groups [][]string, functions []function.Function, startTimeout time.Duration) ([]testbed.GPUs, error) {
			for _, name := range slices.Concat(groups...) {
				if err := devices.Check(name); err != nil {
					return nil, err
				}
			}
			// An instance that spans GPUs has those after the one that was named.
			if err := devices.Permitted("an instance would be on", slices.Concat(groups...)); err != nil {
				return nil, err
			}
			l, err := host.Starter(ctx, env, cli.RunDir(), startTimeout)
			if err != nil {
				return nil, err
			}
			daemon := newKernels(cli.RunDir(), functions)
			var machines []testbed.GPUs
			for _, gpus := range groups {
				m := &local{launcher: l, tokens: tokend.Dial(cli.RunDir()), kernels: daemon, client: fnhttp.NewClient(), gpus: gpus, id: host.MeasuredID(gpus[0])}
				// The GPU is locked by this run, so an instance of that name
				// was left by one that was killed.
				if err := l.Stop(ctx, instance.Record{ID: m.id, Registered: []string{m.id}}); err != nil {
					return nil, err
				}
				machines = append(machines, m)
			}
			return machines, nil
		},
	}
}

// local starts instances as gfaas up does.
type local struct {
	launcher *launch.Launcher
	tokens   *tokend.Client
	kernels  *kernels
	client   *fnhttp.Client
	gpus     []string
	id       string
	busy     bool // an instance was started
}

func (m *local) Start(ctx context.Context, fn function.Function, options testbed.Options) (testbed.Instance, error) {
	m.busy = true
	started, err := m.launcher.Start(ctx, fn, instance.Placement{ID: m.id, GPUs: m.gpus[:max(fn.GPUs, 1)], Slice: options.Slice, Oversubscribe: options.Parks})
	if err != nil {
		return nil, err
	}
	return &running{machine: m, started: started, client: m.client}, nil
}

func (m *local) Others(ctx context.Context) []string {
	executors, ids := m.kernels.look(ctx)
	known := slices.Clone(executors)
	for _, g := range m.status(ctx).GPUs {
		for _, c := range g.Clients {
			known = append(known, c.PID)
			if slices.Contains(m.gpus, g.GPU) && c.Instance != m.id && c.PID > 0 && !slices.Contains(executors, c.PID) {
				ids = append(ids, c.Instance)
			}
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if m.busy {
		return ids // of the other processes some may be the instance's
	}
	return append(ids, m.foreign(known)...)
}

// status is what the token daemon knows; nothing when it does not answer, for
// what is asked of it here must not end a measurement.
func (m *local) status(ctx context.Context) wire.Status {
	s, err := m.tokens.Status(ctx)
	if err != nil {
		return wire.Status{}
	}
	return s
}

// running is an instance on this machine.
type running struct {
	machine *local
	started instance.Record
	client  *fnhttp.Client
}

func (r *running) Target(ctx context.Context, q testbed.Request) (load.Target, error) {
	body, err := bodyFor(ctx, r.client, r.started, q.Body)
	if err != nil {
		return nil, err
	}
	header, body, err := fnhttp.Batched(r.started.Contract, body, q.Batch)
	if err != nil {
		return nil, &testbed.BodyError{Err: err}
	}
	return func(ctx context.Context) error {
		answer, err := r.client.Invoke(ctx, &r.started, ports.Call{Header: header, Body: bytes.NewReader(body)})
		if err != nil {
			return err
		}
		return loadtest.ReadAnswer(answer)
	}, nil
}

// bodyFor is the body that was given, else one that stands for a request to such
// an instance.
func bodyFor(ctx context.Context, client *fnhttp.Client, r instance.Record, given []byte) ([]byte, error) {
	if len(given) > 0 {
		return given, nil
	}
	body, err := client.DefaultBody(ctx, r)
	if err != nil {
		return nil, &testbed.BodyError{Err: fmt.Errorf("no body was given, and under the contract %s none can be made up: %w", r.Contract, err)}
	}
	return body, nil
}

func (r *running) GPUMemMiB(ctx context.Context) float64 {
	return r.most(ctx, func(c wire.ClientStatus) float64 { return c.MemUsedMiB })
}

func (r *running) ImportedMiB(ctx context.Context) float64 {
	return r.most(ctx, func(c wire.ClientStatus) float64 { return c.MemImportedMiB })
}

// most is the sum over its processes on the GPU where that is largest.
func (r *running) most(ctx context.Context, of func(wire.ClientStatus) float64) float64 {
	most := 0.0
	for _, g := range r.machine.status(ctx).GPUs {
		sum := 0.0
		for _, c := range g.Clients {
			if c.Instance == r.started.ID {
				sum += of(c)
			}
		}
		most = max(most, sum)
	}
	return most
}

func (r *running) Parked(ctx context.Context) (used, parked float64) {
	for _, g := range r.machine.status(ctx).GPUs {
		for _, c := range g.Clients {
			if c.Instance == r.started.ID {
				used += c.MemUsedMiB
				parked += c.MemParkedMiB
			}
		}
	}
	return used, parked
}

// Ended passes a state that nobody knows for running.
func (r *running) Ended(ctx context.Context) error {
	state, err := r.machine.launcher.State(ctx, r.started.Handle)
	if err != nil || state.Running {
		return nil
	}
	return errors.New(state.Detail)
}

func (r *running) LastLines(ctx context.Context) string {
	text, _ := ports.Text(r.machine.launcher.Logs(ctx, r.started, ports.LogOptions{Tail: lastLines}))
	return string(text)
}

func (r *running) Stop(ctx context.Context) error { return r.machine.launcher.Stop(ctx, r.started) }

// meters measures several GPUs; none when nothing can be asked.
type meters []*nvml.Meter

func (m *local) Meter() testbed.Meter {
	var all meters
	for _, name := range m.gpus {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			continue
		}
		library := nvml.NVML{}
		if d.Simulated {
			library.Simulated = devices.SimulatedNVML()
		}
		// A GPU that cannot be asked has no figures: that ends no measurement.
		if one, err := library.NewMeter(d); err == nil {
			all = append(all, one)
		}
	}
	return all
}

func (m meters) Sample() {
	for _, one := range m {
		one.Look()
	}
}

// Close returns the mean over the GPUs.
func (m meters) Close() (mean testbed.Activity) {
	for _, one := range m {
		f, n := one.Close(), float64(len(m))
		mean.UtilPct += f.UtilPct / n
		mean.OccupancyPct += f.OccupancyPct / n
		mean.PowerW += f.PowerW / n
	}
	return mean
}

// foreign are the processes on the machine's GPUs, before an instance of ours
// runs there, that are not known. What serves them all, MPS, is none.
func (m *local) foreign(known []int) (names []string) {
	var library nvml.Processes
	defer library.Close()
	for _, name := range m.gpus {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			continue
		}
		if d.Simulated { // all are, or none
			library.Simulated = devices.SimulatedNVML()
			if library.Simulated == "" {
				continue
			}
		}
		used, err := library.Memory(d)
		if err != nil {
			continue
		}
		for pid := range used {
			process, _ := procfs.Read(pid)
			if !slices.Contains(known, pid) && !strings.HasPrefix(process.Name, "nvidia-cuda-mps") {
				names = append(names, strings.TrimSpace(fmt.Sprintf("process %d %s", pid, process.Name)))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
