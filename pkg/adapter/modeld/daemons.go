package modeld

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/status"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// queryTimeout limits the wait for a daemon's answers.
const queryTimeout = 2 * time.Second

// Daemon describes the state of a model daemon.
type Daemon struct {
	Socket string
	GPU    string // as in gpu.ParseDevice; empty: the first GPU of the run directory
	Totals wire.Totals
	Models []wire.Status
	Err    error // the socket exists, but the daemon does not answer
}

// Daemons queries all model daemons with a socket in a run directory.
func Daemons(ctx context.Context, runDir string) (all []Daemon) {
	others, _ := filepath.Glob(Socket(filepath.Join(runDir, "models", "*")))
	first, _ := filepath.Glob(Socket(runDir))
	for _, socket := range append(first, others...) {
		d := Daemon{Socket: socket}
		if len(all) > 0 || len(first) == 0 {
			d.GPU = filepath.Base(filepath.Dir(socket))
		}
		d.Err = d.query(ctx)
		all = append(all, d)
	}
	return all
}

func (d *Daemon) query(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	c, err := Dial(ctx, d.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	a, _, err := c.Call(ctx, wire.Request{Op: wire.OpStat})
	if err != nil {
		return err
	}
	if a.Daemon != nil {
		d.Totals = *a.Daemon
	}
	d.Models, err = c.Models(ctx, "")
	return err
}

// earlier is the name under which OnGPUs reports memory of replaced or removed models that are still
// held.
const earlier = "(earlier)"

// OnGPUs returns the models that the daemons of a run directory hold on GPUs or load. gpus are the GPU
// names in the caller's output; OnGPUs uses the matching one for the first GPU.
func OnGPUs(ctx context.Context, runDir string, gpus []string) []status.Model {
	first := "0"
	if at := slices.IndexFunc(gpus, func(name string) bool {
		d, err := gpu.ParseDevice(name)
		return err == nil && d.Index == 0 && d.MIG == ""
	}); at >= 0 {
		first = gpus[at]
	}
	models := []status.Model{}
	for _, d := range Daemons(ctx, runDir) {
		name, unattributed := d.GPU, d.Totals.Used
		if name == "" {
			name = first
		}
		refs := d.Totals.Refs
		for _, m := range d.Models {
			unattributed -= m.GPUBytes
			refs -= m.Refs
			if m.State == wire.StateFile {
				continue
			}
			models = append(models, status.Model{
				GPU: name, Name: m.Name, Tenant: m.Tenant, State: m.State, MemMiB: gpu.Bytes(m.GPUBytes).MiB(), Refs: m.Refs,
			})
			if m.State == wire.StateLoading {
				unattributed = 0 // its memory is in Used, but not in GPUBytes
			}
		}
		if unattributed > 0 && refs > 0 {
			models = append(models, status.Model{GPU: name, Name: earlier, State: wire.StateGPU, MemMiB: gpu.Bytes(unattributed).MiB(), Refs: refs})
		}
	}
	return models
}
