package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lists"
)

// stateKeeper saves the state of a gateway, which is its applied functions and its instances, in the swarm (swarm.Saved). A
// gateway on another node can then continue with it.
type stateKeeper struct {
	runtime swarmRuntime
	writer  string // random ID of this gateway's state file, set by Restore
}

// swarmRuntime is the part of swarm.Runtime that stateKeeper uses.
type swarmRuntime interface {
	Claim(context.Context) error
	Load(context.Context) (*swarm.Saved, error)
	Save(context.Context, swarm.Saved) error
	Find(ctx context.Context, id string) ([]instance.Record, error)
	Stop(ctx context.Context, h instance.Handle, grace time.Duration) error
}

// markerSuffix is the suffix of the file with the ID of a state file.
const markerSuffix = ".swarm"

// Restore takes over the instances of the swarm from the previous gateway. Call it before the gateway starts instances. It
// has three steps:
//
//   - It claims the instances. The previous gateway then no longer calls, starts or stops instances.
//   - If the state in the swarm was saved from another state file, such as that of a gateway on another node, Restore
//     replaces the functions and instances of the catalog by the saved ones.
//   - It stops each service of an instance that has no record in the catalog.
//
// A file next to the catalog's state file, with the suffix markerSuffix, contains a random ID of the state file. Restore
// creates it if it or the state file does not exist. Each saved state contains the ID of the state file from which it was
// saved.
//
// Restore returns an error if the swarm or the catalog cannot be read or changed.
func (k *stateKeeper) Restore(ctx context.Context, catalog ports.Catalog, stateFile string) error {
	marker := stateFile + markerSuffix
	writer, err := os.ReadFile(marker)
	if info, missing := os.Stat(stateFile); errors.Is(err, fs.ErrNotExist) || errors.Is(missing, fs.ErrNotExist) || missing == nil && info.Size() == 0 {
		writer = []byte(rand.Text() + "\n")
		err = renameio.WriteFile(marker, writer, 0o600)
	}
	if err != nil {
		return fmt.Errorf("read or write the ID of the state file: %w", err)
	}
	k.writer = strings.TrimSpace(string(writer))
	if err := k.runtime.Claim(ctx); err != nil {
		return err
	}
	saved, err := k.runtime.Load(ctx)
	if err != nil {
		return err
	}
	if saved != nil && saved.Writer != k.writer {
		if err := replace(ctx, catalog, saved); err != nil {
			return fmt.Errorf("replace the functions and instances by those saved in the swarm: %w", err)
		}
	}
	known, err := catalog.List(ctx)
	if err != nil {
		return err
	}
	found, err := k.runtime.Find(ctx, "")
	if err != nil {
		return err
	}
	var stopping sync.WaitGroup
	failed := make([]error, len(found))
	for i, r := range found {
		if !slices.ContainsFunc(known.Instances, func(record instance.Record) bool { return record.ID == r.ID }) {
			stopping.Go(func() { failed[i] = k.runtime.Stop(ctx, r.Handle, 0) })
		}
	}
	stopping.Wait()
	return errors.Join(failed...)
}

// replace replaces the functions and the instances of a catalog by the saved ones.
func replace(ctx context.Context, catalog ports.Catalog, saved *swarm.Saved) error {
	old, err := catalog.List(ctx)
	if err != nil {
		return err
	}
	ids := lists.Map(old.Instances, func(r instance.Record) string { return r.ID })
	names := lists.Map(old.Functions, func(fn function.Function) string { return fn.Name })
	if err := catalog.Forget(ctx, ids...); err != nil {
		return err
	}
	if len(names) > 0 {
		if err := catalog.Remove(ctx, names...); err != nil {
			return err
		}
	}
	if len(saved.Functions) > 0 {
		if err := catalog.Apply(ctx, saved.Functions...); err != nil {
			return err
		}
	}
	if len(saved.Instances) == 0 {
		return nil
	}
	return catalog.Reserve(ctx, saved.Instances...)
}

const (
	saveTime  = 20 * time.Second // time limit of an attempt
	savePause = time.Second      // pause after a failed attempt, even if the state changes
	saveRetry = 5 * time.Second  // after savePause, time until the next attempt if the state does not change
)

// KeepSaved saves the state of the catalog in the swarm now and after each change. When ctx ends, KeepSaved saves the state
// once more and returns. After an error, it tries again; it returns early only if another gateway has taken over the
// instances. KeepSaved calls failed with an error, unless the previous attempt failed with the same error.
func (k *stateKeeper) KeepSaved(ctx context.Context, catalog ports.Catalog, failed func(error)) {
	var last ports.Revision
	reported := ""
	for {
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if reported != "" {
			waiting, cancel = context.WithTimeout(ctx, saveRetry)
		}
		state, err := catalog.Watch(waiting, last)
		ended := ctx.Err() != nil // before List, which must return the last change
		if ended || waiting.Err() != nil {
			state, err = catalog.List(context.WithoutCancel(ctx))
		}
		cancel()
		if err == nil {
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
			err = k.runtime.Save(limited, swarm.Saved{Writer: k.writer, Functions: state.Functions, Instances: state.Instances})
			cancel()
			last = state.Revision
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != reported {
			failed(err)
		}
		reported = text
		switch {
		case ended, errors.Is(err, swarm.ErrSuperseded):
			return
		case err != nil:
			select {
			case <-time.After(savePause):
			case <-ctx.Done():
			}
		}
	}
}
