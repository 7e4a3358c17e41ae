package gfaas

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/plan"
)

type registerOptions struct {
	node, gpu, envFile string

	prune, overcommit bool
}

func newRegister(t *tool) *cobra.Command {
	var o registerOptions
	cmd := &cobra.Command{
		Use:   "register PLAN.json",
		Short: "Have the token daemon know a plan that another engine starts",
		Long: `Makes the token daemon of this machine know the slices of a plan's instances that
Compose or a Docker swarm starts, from what gfaas-place export writes: their SM
share, quota, memory limit and turns. It finds or starts the daemon, as gfaas up
does, and starts no instance. The functions must have been applied, and have images.

What the manifest wants to know of this machine goes to --env-file, which Compose
reads where it is called .env: folders, the user that containers run as, which is
yours, and the secret that instances show. A secret that the file has stays, and so
do other lines: give all nodes of a swarm the same file. Nobody but you can read it.

A second time it changes the slices of what runs; --prune makes the daemon forget
what the plan does not name, which then is without the GPU until it is started anew.
What is known so is listed by gfaas ps as lost, and stopped by gfaas down; with
gfaas doctor --repair it is taken over for gfaas invoke and gfaas serve to call. A run
directory under /run does not outlive a restart of the machine: register again before
the engine starts.`,
		Example: `  gfaas apply -f functions.yaml
  gfaas register plan.json --node gpu-3
  docker compose up -d`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "the node of the plan that is this machine (default the only one)")
	f.StringVar(&o.gpu, "gpu", "", "sim has all GPUs simulated (default where there is no NVIDIA driver)")
	cli.Words(cmd, "gpu", "sim")
	f.StringVar(&o.envFile, "env-file", ".env", "file that gets the settings of the manifest")
	cli.Files(cmd, "env", "env-file")
	f.BoolVar(&o.prune, "prune", false, "forget the instances that the plan does not name")
	f.BoolVar(&o.overcommit, "overcommit", false, "take memory limits that sum to more than their GPU has")
	return cmd
}

func (o *registerOptions) run(ctx context.Context, t *tool, path string) error {
	like := upOptions{node: o.node, gpu: o.gpu, parallel: 1, timeout: launch.DefaultPatience}
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
	list, err := like.assignments(ctx, t, p, warn(t.env, p))
	if err != nil {
		return err
	}
	if err := boxed(p, list); err != nil {
		return err
	}
	if err := checkLimits(p, list); err != nil && !o.overcommit {
		return err
	}
	state, err := t.store.Look(ctx)
	if err != nil {
		return err
	}
	if err := checkOurs(list, state.Instances); err != nil {
		return err
	}
	file, err := readEnvFile(o.envFile)
	if err != nil {
		return err
	}
	if err := outfile.CheckCreatable(o.envFile); err != nil { // before anything is registered that its manifest would not find
		return err
	}
	launcher, err := host.Starter(ctx, t.env, t.runDir, 0)
	if err != nil {
		return err
	}
	defer launcher.Close()
	settings, err := registerAll(ctx, t.runDir, launcher, list, cmp.Or(file.get(secretSetting), rand.Text()))
	if err != nil {
		return err
	}
	if o.prune {
		err = forgetOthers(ctx, launcher, list, state.Instances)
	}
	return errors.Join(err, file.write(settings))
}

// boxed refuses functions that no engine of containers can start, and has memory limits
// hold the weights that the model daemon would: it gives nothing to others' containers.
func boxed(p plan.Plan, list []assignment) error {
	var bare []string
	for i, a := range list {
		if a.function.Image == "" && !slices.Contains(bare, a.function.Name) {
			bare = append(bare, a.function.Name)
		}
		if m := a.function.Model; m != nil && m.File != "" {
			list[i].function.Model = &function.Model{Name: m.Name, Size: m.Size}
			list[i].placement.Slice = ownWeights(list[i].function, p, a.placement.ID)
		}
	}
	if len(bare) > 0 {
		return cli.Fail(cli.ExitFailure, "give them an image:, or start the plan with gfaas up",
			fmt.Errorf("other engines start containers, and these functions have no image: %s", strings.Join(bare, ", ")))
	}
	return nil
}

// ownWeights is the slice of an instance that loads its weights itself.
func ownWeights(fn function.Function, p plan.Plan, id string) gpu.Slice {
	var s gpu.Slice
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			if in.ID == id {
				s = slice(fn, g, in)
			}
		}
	}
	return s
}

// checkOurs refuses instances that gfaas itself has started.
func checkOurs(list []assignment, have []instance.Record) error {
	for _, a := range list {
		if slices.ContainsFunc(have, func(r instance.Record) bool { return r.ID == a.placement.ID }) {
			return cli.Fail(cli.ExitFailure, "'gfaas down "+a.placement.ID+"' stops it",
				fmt.Errorf("instance %s is one that gfaas has started", a.placement.ID))
		}
	}
	return nil
}

// registerAll makes the daemon know the instances, and returns what the manifest wants
// to know of this machine.
func registerAll(ctx context.Context, runDir string, launcher *launch.Launcher, list []assignment, secret string) (map[string]string, error) {
	libs, err := preload.FindLibs()
	if err != nil {
		return nil, err
	}
	settings := map[string]string{
		"GFAAS_RUN_DIR": runDir, "GFAAS_LIB_DIR": filepath.Dir(libs.Hook), "GFAAS_USER": fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()),
		secretSetting: secret,
	}
	if status := mps.Probe(); status.Running() {
		settings["CUDA_MPS_PIPE_DIRECTORY"] = status.PipeDir
	}
	for _, a := range list {
		answer, err := launcher.Register(ctx, a.function, a.placement, secret)
		if err != nil {
			return nil, err
		}
		if err := writeInside(runDir, a, secret); err != nil {
			return nil, err
		}
		switch d, err := gpu.ParseDevice(a.placement.GPUs[0]); {
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

// writeInside writes what keeps the programs of an instance's container in its slice when
// they are started with an environment of their own: what the manifest's environment says.
func writeInside(runDir string, a assignment, secret string) error {
	grant := preload.Grant{
		Socket: preload.InsideSocket + "/token.sock", Instance: a.placement.ID, Secret: secret, SMPct: a.placement.Slice.SMPct,
		Libs: preload.Libs{Hook: preload.InsideHook, SimDir: preload.InsideSim}, Env: map[string]string{}, Mem: a.placement.Slice.Mem,
	}
	simulated := false
	for i, name := range a.placement.GPUs {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return err
		}
		if simulated = d.Simulated; !simulated {
			name = strconv.Itoa(i) // a container counts its own from 0
		}
		grant.GPU = append(grant.GPU, name)
	}
	env, err := preload.Environ(grant)
	if err != nil {
		return fmt.Errorf("instance %s: %w", a.placement.ID, err)
	}
	if simulated {
		env["GFAAS_SIM_DIR"], env["GFAAS_SIM_GPU"] = preload.InsideDevice, os.Getenv("GFAAS_SIM_GPU")
	}
	return preload.WriteInside(tokend.InstanceSocketDir(runDir, a.placement.ID), env, "")
}

// forgetOthers makes the daemon forget what neither the plan names nor gfaas has started.
func forgetOthers(ctx context.Context, launcher *launch.Launcher, list []assignment, have []instance.Record) error {
	known, err := launcher.Registrations(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range known {
		named := slices.ContainsFunc(list, func(a assignment) bool { return a.placement.ID == r.Instance })
		started := slices.ContainsFunc(have, func(h instance.Record) bool { return slices.Contains(h.Registered, r.Instance) || h.ID == r.Instance })
		if !named && !started && !host.IsMeasured(r.Instance) {
			errs = append(errs, launcher.Unregister(ctx, r.Instance))
		}
	}
	return errors.Join(errs...)
}
