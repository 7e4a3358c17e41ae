package gfaas

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/gpu"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// probeModels looks at the model daemons of the run directory, one a GPU.
func (t *tool) probeModels(ctx context.Context) []check {
	program := check{Name: "gfaas-modeld", Status: checkOK}
	var err error
	if program.Detail, err = findPlugin("gfaas-modeld"); err != nil {
		program.Status, program.Detail = checkMissing, "neither beside gfaas nor on PATH: functions with a model's file cannot run"
		program.Hint = "run make, or add its folder to PATH"
	}
	out := []check{program}
	for _, d := range modeld.Daemons(ctx, t.runDir) {
		c := check{Name: "model daemon", Status: checkOK}
		if d.GPU != "" {
			c.Name += " of GPU " + d.GPU
		}
		if d.Err != nil {
			c.Status, c.Detail = checkBad, d.Err.Error()
			c.Hint = "it was killed, or hangs: the next gfaas up or gfaas-modeld takes its place, and instances keep what they have mapped"
		} else {
			c.Detail = fmt.Sprintf("%s: %s on the GPU, %v of %v, held by %d", d.Socket, counted(loadedOf(d.Models), "model"),
				gpu.Bytes(d.Totals.Used), gpu.Bytes(d.Totals.Capacity), d.Totals.Refs)
		}
		out = append(out, c)
	}
	if len(out) == 1 {
		out = append(out, check{Name: "model daemon", Status: checkUnneeded, Detail: "none runs; gfaas up and gfaas serve start one for functions with a model's file"})
	}
	gone, err := t.goneModels(ctx)
	if err == nil && len(gone) > 0 {
		out = append(out, check{Name: "model files", Status: checkBad, Detail: "gone: " + names(gone),
			Hint: "put them again, or gfaas doctor --repair forgets them"})
	}
	return out
}

func loadedOf(models []wire.Status) (n int) {
	for _, m := range models {
		if m.State == wire.StateGPU {
			n++
		}
	}
	return n
}

// probeKernels looks at the kernel daemon.
func (t *tool) probeKernels(ctx context.Context) []check {
	program := check{Name: "gfaas-kerneld", Status: checkOK}
	var err error
	if program.Detail, err = findPlugin("gfaas-kerneld"); err != nil {
		program.Status, program.Detail = checkMissing, "neither beside gfaas nor on PATH: functions of kernels cannot run"
		program.Hint = "run make, or add its folder to PATH"
	}
	socket := kerneld.Socket(t.runDir)
	c := check{Name: "kernel daemon", Status: checkUnneeded, Detail: "none runs; functions of kernels need it: gfaas-kerneld"}
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
			c.Status, c.Detail, c.Hint = checkBad, fmt.Sprintf("%s: %v", socket, err), "it was killed, or hangs: start gfaas-kerneld, which takes its place"
		} else {
			c.Status, c.Detail = checkOK, fmt.Sprintf("%s: policy %s, %s", socket, stats.Policy, counted(len(stats.GPUs), "GPU"))
		}
	}
	return []check{program, c}
}

// catalogue is what the state file knows of models.
type catalogue interface {
	Models(ctx context.Context) ([]wire.Record, error)
	DeleteModel(ctx context.Context, tenant, name string) error
}

var _ catalogue = (*bolt.DB)(nil)

// goneModels are those of the state file with a file that is no more.
func (t *tool) goneModels(ctx context.Context) (gone []wire.Record, err error) {
	store, ok := t.store.(catalogue)
	if !ok {
		return nil, nil
	}
	all, err := store.Models(ctx)
	for _, r := range all {
		for _, f := range r.Files {
			if _, err := os.Stat(f.Path); errors.Is(err, fs.ErrNotExist) {
				gone = append(gone, r)
				break
			}
		}
	}
	return gone, err
}

func names(records []wire.Record) string {
	var out []string
	for _, r := range records {
		out = append(out, r.Tenant+"/"+r.Name)
	}
	return strings.Join(out, ", ")
}

// repairModels has the state file forget models whose files are gone, unless a
// daemon has them on a GPU still: there they live until they have to make room. Forgot
// is how many. It says how many.
func (t *tool) repairModels(ctx context.Context) (forgot int, err error) {
	gone, err := t.goneModels(ctx)
	if err != nil || len(gone) == 0 {
		return 0, err
	}
	daemons := modeld.Daemons(ctx, t.runDir)
	var dropped []wire.Record
	for _, r := range gone {
		kept, err := forgetModel(ctx, daemons, r)
		if err != nil {
			return 0, err
		}
		if kept {
			t.env.Notef("note: the file of model %s is gone, and the model is on a GPU still: it is kept until it must make room", r.Tenant+"/"+r.Name)
			continue
		}
		if err := t.store.(catalogue).DeleteModel(ctx, r.Tenant, r.Name); err != nil {
			return 0, err
		}
		dropped = append(dropped, r)
	}
	if len(dropped) > 0 {
		t.env.Notef("note: forgot %s whose files are gone: %s", counted(len(dropped), "model"), names(dropped))
	}
	return len(dropped), nil
}

// forgetModel has the daemons forget a model that they cannot load again. Kept says that
// one has it on its GPU.
func forgetModel(ctx context.Context, daemons []modeld.Daemon, r wire.Record) (kept bool, err error) {
	for _, d := range daemons {
		for _, m := range d.Models {
			if m.Name == r.Name && m.Tenant == r.Tenant && m.State != wire.StateFile {
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
			continue // it has left
		}
		_, _, err = c.Call(ctx, wire.Request{Op: wire.OpRemove, Name: r.Name, Tenant: r.Tenant})
		_ = c.Close()
		var refused *wire.Error
		if err != nil && !(errors.As(err, &refused) && refused.Code == wire.CodeAbsent) {
			return false, fmt.Errorf("model daemon at %s: forget %s: %w", filepath.Base(d.Socket), r.Name, err)
		}
	}
	return false, nil
}
