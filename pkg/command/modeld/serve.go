package modeld

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	"github.com/gfaas/gfaas/pkg/owndir"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// serveOptions holds the daemon's flags.
type serveOptions struct {
	*tool
	gpu          string
	device       gpu.Device // the GPU that gpu names; set by check
	capacity     gpu.Bytes
	staging      gpu.Bytes
	models       string
	tenants      []string
	listen       string
	exitWhenIdle time.Duration
}

// minStaging is the smallest limit on pinned memory: loading alternates between two pieces of it.
const minStaging = 64 * gpu.KiB

func (o *serveOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.capacity, o.staging = 8*gpu.GiB, 64*gpu.MiB
	f.StringVar(&o.gpu, "gpu", "", "GPU for the models: a number, a UUID, or sim for the simulated GPU (default: the GPU in CUDA_VISIBLE_DEVICES, or 0; sim if there is no NVIDIA driver)")
	cli.CompleteWords(cmd, "gpu", "0", "sim")
	cli.Memory(f, &o.capacity, "capacity", "limit on the GPU memory of all models together")
	f.TextVar(&o.staging, "staging", o.staging, "pinned host memory for loading models")
	f.StringVar(&o.models, "models", "", "folder of models that can be requested without gfaas-modeld put, as NAME for NAME.safetensors")
	_ = cmd.MarkFlagDirname("models")
	f.StringSliceVar(&o.tenants, "tenant", nil, "tenant with a socket of its own, model-TENANT.sock, and a limit SIZE on the GPU memory of its models, as `TENANT[=SIZE]` (repeatable; default size: an equal part of the rest of --capacity)")
	f.StringVar(&o.listen, "listen", "", "also serve /healthz, /readyz and /metrics on this TCP address")
	f.DurationVar(&o.exitWhenIdle, "exit-when-idle", 0, "exit after this time without a client (0: never)")
}

// check validates the flags.
func (o *serveOptions) check() error {
	switch {
	case o.capacity <= 0:
		return cli.Usagef("--capacity %v: expected more than 0", o.capacity)
	case o.staging < minStaging:
		return cli.Usagef("--staging %v: expected at least %v", o.staging, minStaging)
	case o.exitWhenIdle < 0:
		return cli.Usagef("--exit-when-idle %v: expected 0 or more", o.exitWhenIdle)
	case o.socket == "":
		return cli.Usagef("--socket is empty: expected a path")
	}
	names, sizes, err := parseTenants(o.tenants)
	if err == nil {
		_, err = model.Shares(o.capacity, names, sizes)
	}
	if err != nil {
		return cli.Usagef("--tenant: %w", err)
	}
	if _, err := cli.CheckAddress("--listen", o.listen); err != nil {
		return err
	}
	d, err := devices.ChooseOne(o.gpu)
	if err != nil {
		return err
	}
	o.device = d
	if o.models != "" {
		if info, err := os.Stat(o.models); err != nil || !info.IsDir() {
			return cli.Fail(cli.ExitFailure, "", errors.Join(errors.New("--models "+o.models+" is not a folder"), err))
		}
	}
	return nil
}

// parseTenants returns the tenants of --tenant, and the explicit sizes.
func parseTenants(words []string) (names []string, sizes map[string]gpu.Bytes, err error) {
	sizes = map[string]gpu.Bytes{}
	for _, word := range words {
		name, size, named := strings.Cut(word, "=")
		if err := wire.CheckTenant(name); err != nil {
			return nil, nil, err
		}
		names = append(names, name)
		if !named {
			continue
		}
		if sizes[name], err = gpu.ParseBytes(size); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if sizes[name] <= 0 {
			return nil, nil, fmt.Errorf("%s=%s: expected more than 0", name, size)
		}
	}
	return names, sizes, nil
}

// open opens the real or the simulated GPU.
func (o *serveOptions) open() (device.Device, error) {
	if !o.device.Simulated {
		return cuda.Open(cuda.Library, o.device)
	}
	libs, err := preload.FindLibs()
	if err != nil {
		return nil, err
	}
	if _, err := simgpu.Ensure(); err != nil {
		return nil, err
	}
	devices.NoteSimulated(o.env)
	return cuda.Open(filepath.Join(libs.SimDir, cuda.Library), o.device)
}

func (o *serveOptions) run(cmd *cobra.Command) error {
	o.env.CleansUp()
	o.env.Reloads()
	if err := o.check(); err != nil {
		return err
	}
	socket, err := filepath.Abs(o.socket)
	if err != nil {
		return err
	}
	o.models = folder(o.models)
	log := o.env.Logger(o.env.Err)
	on, err := o.open()
	if err != nil {
		return err
	}
	tenants, bounds, err := parseTenants(o.tenants)
	if err != nil {
		return errors.Join(err, on.Close())
	}
	d, err := model.Open(model.Config{
		Socket: socket, Tenants: tenants, Bounds: bounds, Capacity: o.capacity, Staging: o.staging, Models: o.models, Listen: o.listen,
		Slices: slicesFor(socket), GPUName: o.device.String(),
		Private: cli.IsRunDir(filepath.Dir(socket)), ExitWhenIdle: o.exitWhenIdle, GPU: on, Catalogue: bolt.Open(cli.StatePath(), o.env.Notef), Log: log,
		Reload: func() (model.Settings, error) { return o.reload(cmd.Flags(), log) },
	})
	if err != nil {
		err = errors.Join(err, on.Close())
	}
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitUnavailable, owndir.Hint, err)
	}
	if err != nil {
		return err
	}
	attrs := []any{"socket", socket, "gpu", on.UUID(), "capacity", int64(o.capacity), "staging", int64(o.staging)}
	if addr := d.WebAddr(); addr != nil {
		attrs = append(attrs, "listen", addr.String())
	}
	log.Info("serving", attrs...)
	err = d.Serve(cmd.Context())
	log.Info("stopped")
	return err
}

// reload reads the settings again: the capacity and additional tenants.
func (o *serveOptions) reload(flags *pflag.FlagSet, log *slog.Logger) (model.Settings, error) {
	before := *o
	err := o.env.Reread(flags)
	wanted := *o
	*o = before
	if err == nil {
		err = wanted.check()
	}
	if err != nil {
		return model.Settings{}, err
	}
	cli.NoteRestart(log, map[string]bool{
		"gpu": wanted.gpu != before.gpu, "staging": wanted.staging != before.staging, "listen": wanted.listen != before.listen,
		"exit-when-idle": wanted.exitWhenIdle != before.exitWhenIdle, "models": folder(wanted.models) != folder(before.models),
	})
	tenants, bounds, err := parseTenants(wanted.tenants)
	return model.Settings{Capacity: wanted.capacity, Tenants: tenants, Bounds: bounds}, err
}

// folder returns the absolute path of a folder; an empty name stays empty.
func folder(name string) string {
	if whole, err := filepath.Abs(name); err == nil && name != "" {
		return whole
	}
	return name
}
