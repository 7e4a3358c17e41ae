package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire/model"
)

// noModel is the HeldModel of a function without a model file.
type noModel struct{}

func (noModel) Folder() string                      { return "" }
func (noModel) ExtendTo(context.Context, int) error { return nil }
func (noModel) Close() error                        { return nil }

// holdModel loads a function's model onto the instance's first GPU and holds it. It runs before the instance
// starts, so that an invalid model file is reported as such.
func (l *Launcher) holdModel(ctx context.Context, fn function.Function, p instance.Placement) (folder string, held HeldModel, err error) {
	if fn.Model == nil || fn.Model.File == "" {
		return "", noModel{}, nil
	}
	if l.config.Models == nil {
		return "", nil, errors.New("cannot load its model: this command has no access to a model daemon")
	}
	file := fn.Model.File
	if !filepath.IsAbs(file) {
		file = filepath.Join(fn.Dir, file)
	}
	ctx, cancel := context.WithTimeout(ctx, l.config.ReadyTimeout)
	defer cancel()
	if held, err = l.config.Models.Hold(ctx, p.GPUs[0], fn.Tenant, fn.Model.Name, file); err != nil {
		return "", nil, fmt.Errorf("model %s: %w", fn.Model.Name, err)
	}
	return held.Folder(), held, nil
}

// isModelMemoryError reports whether the model daemon refused a model for lack of GPU memory, which other programs or
// held models use.
func isModelMemoryError(err error) bool {
	var refused interface{ Refusal() (code, where string) }
	if !errors.As(err, &refused) {
		return false
	}
	code, _ := refused.Refusal()
	return code == model.CodeGPUMemory || code == model.CodeBusy
}

// extendHold makes the instance's first process hold its model. If the process has ended or is not visible in
// this PID namespace, extendHold leaves the hold to the process, which acquires it when it loads the model.
func (l *Launcher) extendHold(ctx context.Context, rt ports.Runtime, r instance.Record, held HeldModel) error {
	if held.Folder() == "" {
		return nil
	}
	pid, err := rt.PID(ctx, r.Handle)
	if err != nil {
		return err
	}
	if pid == 0 {
		l.config.Note("note: instance %s: its process is not visible from here, so it holds its model only after it has loaded it", r.ID)
		return nil
	}
	if err := held.ExtendTo(ctx, pid); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("hold its model: %w", err)
	}
	return nil
}
