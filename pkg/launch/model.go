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

// noModel is what a function without a model holds.
type noModel struct{}

func (noModel) Folder() string                  { return "" }
func (noModel) Keep(context.Context, int) error { return nil }
func (noModel) Close() error                    { return nil }

// hold has a function's model on the instance's first GPU before it starts, so that
// a file that is none is told as such.
func (l *Launcher) hold(ctx context.Context, fn function.Function, p instance.Placement) (folder string, held HeldModel, err error) {
	if fn.Model == nil || fn.Model.File == "" {
		return "", noModel{}, nil
	}
	if l.config.Models == nil {
		return "", nil, errors.New("its model cannot be held here: there is no model daemon")
	}
	file := fn.Model.File
	if !filepath.IsAbs(file) {
		file = filepath.Join(fn.Dir, file)
	}
	ctx, cancel := context.WithTimeout(ctx, l.config.Patience)
	defer cancel()
	if held, err = l.config.Models.Hold(ctx, p.GPUs[0], fn.Tenant, fn.Model.Name, file); err != nil {
		return "", nil, fmt.Errorf("model %s: %w", fn.Model.Name, err)
	}
	return held.Folder(), held, nil
}

// noRoom reports whether the model daemon had no room for a model: other programs, or
// models that are held, have the GPU's memory.
func noRoom(err error) bool {
	var refused interface{ Refusal() (code, where string) }
	if !errors.As(err, &refused) {
		return false
	}
	code, _ := refused.Refusal()
	return code == model.CodeGPUMemory || code == model.CodeBusy
}

// keep has an instance's first process hold its model. One that has ended, or that
// cannot be seen from here, holds it only by what it loads itself.
func (l *Launcher) keep(ctx context.Context, rt ports.Runtime, r instance.Record, held HeldModel) error {
	if held.Folder() == "" {
		return nil
	}
	pid, err := rt.PID(ctx, r.Handle)
	if err != nil {
		return err
	}
	if pid == 0 {
		l.config.Note("note: %s: its process cannot be seen from here: it holds its model from when it loads it", r.ID)
		return nil
	}
	if err := held.Keep(ctx, pid); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("hold its model: %w", err)
	}
	return nil
}
