package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// probeModels checks the model daemons of the run directory, one per GPU.
func (m Host) probeModels(ctx context.Context) []Check {
	out := []Check{m.probeProgram("gfaas-modeld", false, ": functions with a model file cannot run")}
	for _, d := range modeld.Daemons(ctx, m.RunDir) {
		c := Check{Name: "model daemon", Status: OK}
		if d.GPU != "" {
			c.Name += " of GPU " + d.GPU
		}
		if d.Err != nil {
			c.Status, c.Detail = Bad, d.Err.Error()
			c.Hint = "it was killed or hangs: the next gfaas up or gfaas-modeld replaces it, and instances keep the models that they have mapped"
		} else {
			c.Detail = fmt.Sprintf("%s: %s on the GPU, %v of %v, held by %d", d.Socket, number.Count(countLoaded(d.Models), "model"),
				gpu.Bytes(d.Totals.Used), gpu.Bytes(d.Totals.Capacity), d.Totals.Refs)
		}
		out = append(out, c)
	}
	if len(out) == 1 {
		out = append(out, Check{Name: "model daemon", Status: Unneeded, Detail: "none runs; gfaas up and gfaas serve start one for functions with a model file"})
	}
	missing, err := m.modelsWithMissingFiles(ctx)
	if err == nil && len(missing) > 0 {
		out = append(out, Check{Name: "model files", Status: Bad, Detail: "missing: " + names(missing),
			Hint: "restore the files, or remove the models with gfaas doctor --repair"})
	}
	return out
}

func countLoaded(models []wire.Status) (n int) {
	for _, model := range models {
		if model.State == wire.StateGPU {
			n++
		}
	}
	return n
}

// probeKernels checks the kernel daemon.
func (m Host) probeKernels(ctx context.Context) []Check {
	program := m.probeProgram("gfaas-kerneld", false, ": functions of the kind kernels cannot run")
	socket := kerneld.Socket(m.RunDir)
	c := Check{Name: "kernel daemon", Status: Unneeded, Detail: "none runs; start gfaas-kerneld for functions of the kind kernels"}
	if _, err := os.Lstat(socket); err == nil {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		client := kerneld.Dial(socket, "")
		defer client.Close()
		var stats struct {
			Policy string
			GPUs   []struct{}
		}
		if err := client.Stats(ctx, &stats); err != nil {
			c.Status, c.Detail, c.Hint = Bad, fmt.Sprintf("%s: %v", socket, err), "it was killed or hangs: start gfaas-kerneld to replace it"
		} else {
			c.Status, c.Detail = OK, fmt.Sprintf("%s: policy %s, %s", socket, stats.Policy, number.Count(len(stats.GPUs), "GPU"))
		}
	}
	return []Check{program, c}
}

// modelsWithMissingFiles returns the models in the state file whose files are not all present.
func (m Host) modelsWithMissingFiles(ctx context.Context) (missing []wire.Record, err error) {
	all, err := m.State.Models(ctx)
	for _, r := range all {
		for _, f := range r.Files {
			if _, err := os.Stat(f.Path); errors.Is(err, fs.ErrNotExist) {
				missing = append(missing, r)
				break
			}
		}
	}
	return missing, err
}

func names(records []wire.Record) string {
	return strings.Join(lists.Map(records, func(r wire.Record) string { return r.Tenant + "/" + r.Name }), ", ")
}

// RepairModels removes models whose files do not exist from the state file and returns their number. It keeps
// models that a daemon has on a GPU. It prints a note about both.
func (m Host) RepairModels(ctx context.Context, note func(format string, args ...any)) (removed int, err error) {
	missing, err := m.modelsWithMissingFiles(ctx)
	if err != nil || len(missing) == 0 {
		return 0, err
	}
	daemons := modeld.Daemons(ctx, m.RunDir)
	var dropped []wire.Record
	for _, r := range missing {
		loaded, err := forgetModel(ctx, daemons, r)
		if err != nil {
			return 0, err
		}
		if loaded {
			note("note: the file of model %s is missing, but the model is on a GPU: it is kept until it must make room", r.Tenant+"/"+r.Name)
			continue
		}
		if err := m.State.DeleteModel(ctx, r.Tenant, r.Name); err != nil {
			return 0, err
		}
		dropped = append(dropped, r)
	}
	if len(dropped) > 0 {
		note("note: removed %s whose files are missing: %s", number.Count(len(dropped), "model"), names(dropped))
	}
	return len(dropped), nil
}

// forgetModel removes a model from the daemons' lists. It returns loaded = true, and removes nothing, if a daemon
// has the model on its GPU.
func forgetModel(ctx context.Context, daemons []modeld.Daemon, r wire.Record) (loaded bool, err error) {
	for _, d := range daemons {
		for _, held := range d.Models {
			if held.Name == r.Name && held.Tenant == r.Tenant && held.State != wire.StateFile {
				return true, nil
			}
		}
	}
	for _, d := range daemons {
		if d.Err != nil {
			continue
		}
		c, err := modeld.Dial(ctx, d.Socket)
		if err != nil {
			continue // the daemon has ended
		}
		_, _, err = c.Call(ctx, wire.Request{Op: wire.OpRemove, Name: r.Name, Tenant: r.Tenant})
		_ = c.Close()
		var refused *wire.Error
		if err != nil && !(errors.As(err, &refused) && refused.Code == wire.CodeAbsent) {
			return false, fmt.Errorf("remove model %s from the model daemon at %s: %w", r.Name, filepath.Base(d.Socket), err)
		}
	}
	return false, nil
}
