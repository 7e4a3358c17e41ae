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

// lookTime is how long a daemon may take to say what it has.
const lookTime = 2 * time.Second

// Daemon is a model daemon as it was found.
type Daemon struct {
	Socket string
	GPU    string // as in gpu.ParseDevice; empty: the run directory's first
	Totals wire.Totals
	Models []wire.Status
	Err    error // it does not answer, though its socket is there
}

// Daemons are the model daemons of a run directory: those whose sockets are there.
func Daemons(ctx context.Context, runDir string) (all []Daemon) {
	others, _ := filepath.Glob(Socket(filepath.Join(runDir, "models", "*")))
	first, _ := filepath.Glob(Socket(runDir))
	for _, socket := range append(first, others...) {
		d := Daemon{Socket: socket}
		if len(all) > 0 || len(first) == 0 {
			d.GPU = filepath.Base(filepath.Dir(socket))
		}
		d.Err = d.look(ctx)
		all = append(all, d)
	}
	return all
}

func (d *Daemon) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
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

// earlier is what memory is shown under that is of no model's newest generation, and
// is held all the same.
const earlier = "(earlier)"

// OnGPUs are the models that a run directory's daemons have on GPUs, or are loading.
// The GPUs are those that others are shown on: the first daemon's has one of these
// names.
func OnGPUs(ctx context.Context, runDir string, gpus []string) []status.Model {
	first := "0"
	if at := slices.IndexFunc(gpus, func(name string) bool {
		d, err := gpu.ParseDevice(name)
		return err == nil && d.Index == 0 && d.MIG == ""
	}); at >= 0 {
		first = gpus[at]
	}
	out := []status.Model{}
	for _, d := range Daemons(ctx, runDir) {
		name, rest := d.GPU, d.Totals.Used
		if name == "" {
			name = first
		}
		refs := d.Totals.Refs
		for _, m := range d.Models {
			rest -= m.GPUBytes
			refs -= m.Refs
			if m.State == wire.StateFile {
				continue
			}
			out = append(out, status.Model{
				GPU: name, Name: m.Name, Tenant: m.Tenant, State: m.State, MemMiB: gpu.Bytes(m.GPUBytes).MiB(), Refs: m.Refs,
			})
			if m.State == wire.StateLoading {
				rest = 0 // it has memory that nobody has counted
			}
		}
		if rest > 0 && refs > 0 {
			out = append(out, status.Model{GPU: name, Name: earlier, State: wire.StateGPU, MemMiB: gpu.Bytes(rest).MiB(), Refs: refs})
		}
	}
	return out
}
