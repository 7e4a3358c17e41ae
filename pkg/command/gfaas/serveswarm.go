package gfaas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/status"
)

// checkSwarm validates the flags for a swarm, and refuses those that it does not support: the gateway cannot reach the
// token daemons and the drivers of other nodes.
func (o *serveOptions) checkSwarm() error {
	switch {
	case !o.swarm && o.keyFile != "":
		return cli.Usagef("--grant-key has no effect without --swarm")
	case !o.swarm && o.network != swarm.DefaultNetwork:
		return cli.Usagef("--network has no effect without --swarm")
	case !o.swarm:
		return nil
	case o.network == "":
		return cli.Usagef("--network is empty: expected the name of an overlay network")
	case o.keyFile == "":
		return cli.Usagef("--swarm needs --grant-key: gfaas grant keygen FILE creates the key")
	case o.gpu != "":
		return cli.Usagef("--gpu cannot be used with --swarm: the labels of the nodes name their GPUs")
	case o.Park != "":
		return cli.Usagef("--park cannot be used with --swarm")
	case o.Placement != "policy":
		return cli.Usagef("--placement %s cannot be used with --swarm", o.Placement)
	case o.utilization == fromNVML:
		return cli.Usagef("--utilization-source %s cannot be used with --swarm", fromNVML)
	}
	return nil
}

// openGPUs returns the GPUs of this machine or, with --swarm, those of all nodes, to which it connects.
func (o *serveOptions) openGPUs(ctx context.Context, t *tool) ([]devices.GPU, error) {
	if !o.swarm {
		return devices.List(ctx, o.gpu)
	}
	fleet, err := host.NewFleet(ctx, t.env, t.runDir, host.FleetConfig{Network: o.network, KeyFile: o.keyFile, ReadyTimeout: o.startTimeout, Log: t.env.Logger(t.env.Err)})
	if err != nil {
		return nil, o.explainSecret(o.keyFile, err)
	}
	gpus, err := fleet.GPUs(ctx)
	if err != nil {
		_ = fleet.Close()
		return nil, err
	}
	o.fleet = fleet
	return gpus, nil
}

// secretsFolder is the folder of a container with the secrets of its service.
const secretsFolder = "/run/secrets/"

// explainSecret adds a hint to the error of a file that the service of a gateway gets from a secret.
func (o *serveOptions) explainSecret(file string, err error) error {
	_, open := errors.AsType[*gateway.OpenFileError](err)
	if !o.swarm || !errors.Is(err, fs.ErrNotExist) && !(open && strings.HasPrefix(file, secretsFolder)) {
		return err
	}
	target := strings.TrimPrefix(file, secretsFolder)
	return cli.Fail(cli.ExitFailure, fmt.Sprintf("if the gateway is a service, create the secret (docker secret create NAME FILE) and mount it: docker service update --secret-add source=NAME,target=%s,mode=0400 SERVICE", target), err)
}

// keepState continues with the state that the gateway on another node has saved in the swarm, and saves the state there
// after each change. stop ends that, after a last save.
func (o *serveOptions) keepState(ctx context.Context, t *tool, log *slog.Logger) (stop func(), err error) {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := o.fleet.Restore(limited, t.store, cli.StatePath()); err != nil {
		return nil, err
	}
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		o.fleet.KeepSaved(keeping, t.store, func(err error) { log.Error("cannot save the state in the swarm", "err", err) })
	})
	return func() { end(); running.Wait() }, nil
}

// watchGPUs returns the function that follows the GPUs of the swarm.
func (o *serveOptions) watchGPUs(log *slog.Logger) func(context.Context, func([]gateway.GPU)) {
	return func(ctx context.Context, set func([]gateway.GPU)) {
		o.fleet.Watch(ctx, func(usable []devices.GPU) { set(lists.Map(usable, o.gatewayGPU)) }, func(err error) {
			if host.Superseded(err) {
				log.Error("stopping", "err", err)
				o.supersede()
				return
			}
			log.Warn("cannot use all nodes of the swarm", "err", err)
		})
	}
}

// gatewayGPU returns a GPU with the memory and the model that the flags set.
func (o *serveOptions) gatewayGPU(g devices.GPU) gateway.GPU {
	return gateway.GPU{Name: g.Name, Mem: int64(cmp.Or(o.gpuMem, g.Mem)), Model: cmp.Or(o.gpuModel, g.Model)}
}

// local connects a gateway to the token daemon and the drivers of this machine, and returns its launcher.
func (o *serveOptions) local(ctx context.Context, t *tool, cfg *gateway.Config, runDir string, gpus []devices.GPU, drivers *devices.Occupancy) (*launch.Launcher, error) {
	launcher, err := host.Starter(ctx, t.env, runDir, o.startTimeout)
	if err != nil {
		return nil, err
	}
	daemon := tokend.Dial(runDir)
	if o.Park == gateway.ParkCheckpoint {
		err = checkpoints(ctx, daemon, gpus)
	}
	if err == nil {
		cfg.Busy, err = o.utilizationSource(t.env, drivers, gpus)
	}
	if err != nil {
		_ = launcher.Close()
		return nil, err
	}
	cfg.Usage, cfg.Faults, cfg.Parker, cfg.Swapper = daemon.Status, daemon.Faults, daemon, tokend.Swapper{Client: daemon}
	names := lists.Map(gpus, func(g devices.GPU) string { return g.Name })
	cfg.Weights = func(ctx context.Context) []status.Model { return modeld.OnGPUs(ctx, runDir, names) }
	cfg.Memory = func(context.Context) map[string]gateway.Memory {
		out := map[string]gateway.Memory{}
		for _, name := range names {
			if m, err := memoryOf(drivers, name); err == nil {
				out[name] = m
			}
		}
		return out
	}
	return launcher, nil
}
