// Package local implements the testbed on this machine: it starts instances like gfaas up,
// loads them, and observes them through the daemons.
//
// The command passes the adapters that the package needs in Config. If a daemon does not
// answer, its figures are unknown: a failed query must not end a measurement.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

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

// lastLines is the number of lines of an instance's output that an error shows.
const lastLines = 10

// Config has the ports to the system.
type Config struct {
	Launcher *launch.Launcher
	Invoker  ports.Invoker
	// Encode returns the header and the body of a request to the instance. It returns a
	// *testbed.BodyError if no instance would accept such a body.
	Encode func(ctx context.Context, r instance.Record, q testbed.Request) (http.Header, []byte, error)
	// Status returns the state of the token daemon.
	Status func(ctx context.Context) (wire.Status, error)
	// Kernels returns the processes of the kernel daemon's executors that work for the
	// measured functions, and the names of its other active clients; nil if no measured
	// function uses that daemon.
	Kernels func(ctx context.Context) (executors []int, others []string)
	// Processes returns the processes that use the GPUs, as far as known.
	Processes func(gpus []string) []int
	// Meter starts measuring the activity of the GPUs.
	Meter func(gpus []string) testbed.Meter
}

// GPUs implements testbed.GPUs.
type GPUs struct {
	config  Config
	names   []string
	ids     []string    // of the instances that run at the same time
	started atomic.Bool // an instance was started at least once
}

// New returns the testbed of the named GPUs, which this process must have locked. Its
// instances that run at the same time have these IDs. New stops instances with these IDs that an
// earlier, killed process has left.
func New(ctx context.Context, config Config, names, ids []string) (*GPUs, error) {
	for _, id := range ids {
		if err := config.Launcher.Stop(ctx, instance.Record{ID: id, Registered: []string{id}}); err != nil {
			return nil, err
		}
	}
	return &GPUs{config: config, names: names, ids: ids}, nil
}

// Start implements testbed.GPUs.
func (g *GPUs) Start(ctx context.Context, fn function.Function, options testbed.Options) (testbed.Instance, error) {
	g.started.Store(true)
	p := instance.Placement{ID: g.ids[options.Number], GPUs: g.names[:max(fn.GPUs, 1)], Slice: options.Slice}
	if options.Parks {
		p.Oversubscribe = gpu.SwapIdle
	}
	record, err := g.config.Launcher.Start(ctx, fn, p)
	if err != nil {
		return nil, err
	}
	return &running{gpus: g, record: record}, nil
}

// Meter implements testbed.GPUs.
func (g *GPUs) Meter() testbed.Meter { return g.config.Meter(g.names) }

// OtherUsers implements testbed.GPUs. It names clients of the daemons and, until the first
// instance starts, other processes on the GPUs: later some of those may be the instance's.
func (g *GPUs) OtherUsers(ctx context.Context) []string {
	var executors []int
	var ids []string
	if g.config.Kernels != nil {
		executors, ids = g.config.Kernels(ctx)
	}
	known := slices.Clone(executors)
	for _, one := range g.status(ctx).GPUs {
		for _, c := range one.Clients {
			known = append(known, c.PID)
			if slices.Contains(g.names, one.GPU) && !slices.Contains(g.ids, c.Instance) && c.PID > 0 && !slices.Contains(executors, c.PID) {
				ids = append(ids, c.Instance)
			}
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if g.started.Load() {
		return ids
	}
	return append(ids, g.foreign(known)...)
}

// foreign returns the names of the processes on the GPUs that are not in known, sorted. It
// omits processes of MPS, which serves all clients.
func (g *GPUs) foreign(known []int) (names []string) {
	for _, pid := range g.config.Processes(g.names) {
		process, _ := procfs.Read(pid)
		if !slices.Contains(known, pid) && !strings.HasPrefix(process.Name, "nvidia-cuda-mps") {
			names = append(names, strings.TrimSpace(fmt.Sprintf("process %d %s", pid, process.Name)))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// status returns the state of the token daemon; empty if it does not answer.
func (g *GPUs) status(ctx context.Context) wire.Status {
	s, err := g.config.Status(ctx)
	if err != nil {
		return wire.Status{}
	}
	return s
}

// running implements testbed.Instance.
type running struct {
	gpus   *GPUs
	record instance.Record
}

func (r *running) Target(ctx context.Context, q testbed.Request) (load.Sender, error) {
	header, body, err := r.gpus.config.Encode(ctx, r.record, q)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		answer, err := r.gpus.config.Invoker.Invoke(ctx, &r.record, ports.Call{Header: header, Body: bytes.NewReader(body)})
		if err != nil {
			return err
		}
		return loadtest.ReadAnswer(answer)
	}, nil
}

func (r *running) GPUMemMiB(ctx context.Context) float64 {
	return r.maxOverGPUs(ctx, func(c wire.ClientStatus) float64 { return c.MemUsedMiB })
}

func (r *running) ImportedMiB(ctx context.Context) float64 {
	return r.maxOverGPUs(ctx, func(c wire.ClientStatus) float64 { return c.MemImportedMiB })
}

// maxOverGPUs sums a figure over the instance's processes on each GPU, and returns the
// largest sum.
func (r *running) maxOverGPUs(ctx context.Context, of func(wire.ClientStatus) float64) float64 {
	highest := 0.0
	for _, g := range r.gpus.status(ctx).GPUs {
		sum := 0.0
		for _, c := range g.Clients {
			if c.Instance == r.record.ID {
				sum += of(c)
			}
		}
		highest = max(highest, sum)
	}
	return highest
}

func (r *running) Parked(ctx context.Context) (used, parked float64) {
	for _, g := range r.gpus.status(ctx).GPUs {
		for _, c := range g.Clients {
			if c.Instance == r.record.ID {
				used += c.MemUsedMiB
				parked += c.MemParkedMiB
			}
		}
	}
	return used, parked
}

// CheckRunning implements testbed.Instance. It also returns nil if the state is unknown.
func (r *running) CheckRunning(ctx context.Context) error {
	state, err := r.gpus.config.Launcher.State(ctx, r.record.Handle)
	if err != nil || state.Running {
		return nil
	}
	return errors.New(state.Detail)
}

func (r *running) Output(ctx context.Context) ports.LogLines {
	return r.gpus.config.Launcher.Logs(ctx, r.record, ports.LogOptions{Tail: -1, Follow: true})
}

func (r *running) LastLines(ctx context.Context) string {
	text, _ := ports.Text(r.gpus.config.Launcher.Logs(ctx, r.record, ports.LogOptions{Tail: lastLines}))
	return string(text)
}

func (r *running) Stop(ctx context.Context) error {
	return r.gpus.config.Launcher.Stop(ctx, r.record)
}
