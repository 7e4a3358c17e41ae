package gfaas

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/containercli"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/rollout"
)

type registerOptions struct {
	node, gpu, envFile string

	prune, overcommit bool
}

func newRegister(t *tool) *cobra.Command {
	var o registerOptions
	cmd := &cobra.Command{
		Use:   "register PLAN.json|-",
		Short: "Register the slices of a plan whose instances Compose or Docker Swarm starts",
		Long: `Register the slices of a plan's instances with the token daemon of this machine.
Use this command for instances that Compose or Docker Swarm starts from a manifest
of gfaas-place export. A registration contains the instance's SM share, quota,
memory limit and turns. The command starts the token daemon if none is running, but
starts no instance. The functions must have been applied, and must have images.

The command writes the settings that the manifest needs on this machine to the file
of --env-file: folders, the user that the containers run as (you), and a secret,
with which instances identify themselves to the token daemon. Only you can read the
file. Compose uses it if its name is .env. If the file exists, the command keeps the
secret in it and its other lines. All nodes of a swarm need the same secret: run the
command on one node, and copy the file to the other nodes before you run it there.

To change the slices of running instances, register the changed plan. With --prune,
the command also removes the registrations of instances that are not in the plan.
Such an instance cannot use the GPU until you register and restart it.

Instances that Compose or Docker Swarm started are not in the state file. So gfaas
ps shows them as lost. gfaas down stops them. gfaas doctor --repair adds
them to the state file, so that gfaas invoke and gfaas serve can call them.

If the run directory is under /run, a restart of the machine deletes it, with all
registrations. Register the plan again before Docker starts the instances.`,
		Example: `  # Register the instances of one node, and start them with Compose
  gfaas apply -f functions.yaml
  gfaas register plan.json --node gpu-3
  docker compose up -d`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "`name` of this machine in the plan (default: the plan's only node)")
	f.StringVar(&o.gpu, "gpu", "", "with the value sim, use simulated GPUs instead of the GPUs of the plan (default: sim if there is no NVIDIA driver)")
	cli.CompleteWords(cmd, "gpu", "sim")
	f.StringVar(&o.envFile, "env-file", ".env", "file to write the settings for the manifest to")
	cli.CompleteFiles(cmd, "env", "env-file")
	f.BoolVar(&o.prune, "prune", false, "unregister instances that are not in the plan")
	f.BoolVar(&o.overcommit, "overcommit", false, "accept memory limits that sum to more than the memory of their GPU")
	return cmd
}

func (o *registerOptions) run(ctx context.Context, t *tool, path string) error {
	like := upOptions{node: o.node, gpu: o.gpu, parallel: 1, timeout: launch.DefaultReadyTimeout}
	if err := like.check(); err != nil {
		return err
	}
	p, err := cli.Load(t.env, path, plan.Read)
	if err != nil {
		return err
	}
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	list, err := like.assignments(ctx, t, p)
	if err != nil {
		return err
	}
	if err := rollout.CheckContainers(p, list); err != nil {
		return err
	}
	if err := rollout.CheckLimits(p, list); err != nil && !o.overcommit {
		return err
	}
	state, err := t.store.List(ctx)
	if err != nil {
		return err
	}
	if err := rollout.CheckUnstarted(list, state.Instances); err != nil {
		return err
	}
	file, err := readEnvFile(o.envFile)
	if err != nil {
		return err
	}
	if err := outfile.CheckCreatable(o.envFile); err != nil { // before any registration, which a manifest could not use without the file
		return err
	}
	launcher, err := host.Starter(ctx, t.env, t.runDir, 0)
	if err != nil {
		return err
	}
	defer launcher.Close()
	settings, err := register(ctx, t.runDir, launcher, list, cmp.Or(file.get(containercli.Secret), rand.Text()))
	if err != nil {
		return err
	}
	if o.prune {
		err = t.controller(launcher).UnregisterOthers(ctx, list, state.Instances)
	}
	return errors.Join(err, file.write(settings))
}

// register registers the instances and returns the settings of this host for the manifest.
func register(ctx context.Context, runDir string, launcher *launch.Launcher, list []rollout.Assignment, secret string) (map[string]string, error) {
	libs, err := preload.FindLibs()
	if err != nil {
		return nil, err
	}
	settings := map[string]string{
		"GFAAS_RUN_DIR": runDir, "GFAAS_LIB_DIR": filepath.Dir(libs.Hook), "GFAAS_USER": fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()),
		containercli.Secret: secret,
	}
	if status := mps.Probe(); status.Running() {
		settings["CUDA_MPS_PIPE_DIRECTORY"] = status.PipeDir
	}
	for _, a := range list {
		answer, err := launcher.Register(ctx, a.Function, a.Placement, secret)
		if err != nil {
			return nil, err
		}
		if err := writeInside(runDir, a, secret); err != nil {
			return nil, err
		}
		switch d, err := gpu.ParseDevice(a.GPUs[0]); {
		case err != nil:
			return nil, err
		case d.Simulated:
			settings["GFAAS_SIM_GPU"] = os.Getenv("GFAAS_SIM_GPU")
			if settings["GFAAS_SIM_DIR"], err = filepath.Abs(simgpu.Dir()); err != nil {
				return nil, err
			}
		case answer.MPSPipeDir != "":
			settings["CUDA_MPS_PIPE_DIRECTORY"] = answer.MPSPipeDir
		}
	}
	return settings, nil
}

// writeInside writes the environment from the manifest to a file that is mounted into the instance's
// container. The file keeps programs in the slice that start with another environment.
func writeInside(runDir string, a rollout.Assignment, secret string) error {
	grant := preload.Grant{
		Socket: preload.InsideSocket + "/token.sock", Instance: a.ID, Secret: secret, SMPct: a.Slice.SMPct,
		Libs: preload.Libs{Hook: preload.InsideHook, SimDir: preload.InsideSim}, Env: map[string]string{}, Mem: a.Slice.Mem,
	}
	simulated := false
	for i, name := range a.GPUs {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return err
		}
		if simulated = d.Simulated; !simulated {
			name = strconv.Itoa(i) // a container numbers its GPUs from 0
		}
		grant.GPU = append(grant.GPU, name)
	}
	env, err := preload.Environ(grant)
	if err != nil {
		return fmt.Errorf("instance %s: %w", a.ID, err)
	}
	if simulated {
		env["GFAAS_SIM_DIR"], env["GFAAS_SIM_GPU"] = preload.InsideDevice, os.Getenv("GFAAS_SIM_GPU")
	}
	return preload.WriteInside(tokend.InstanceSocketDir(runDir, a.ID), env, "")
}
