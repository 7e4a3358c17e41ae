package gfaas

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/containercli"
	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

func newDockerArgs(t *tool) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "docker-args NAME",
		Short: "Print the docker run arguments that put a container into a slice",
		Long: `Print the arguments with which docker run puts a container into the slice NAME.
Register the slice first, with gfaas register. The arguments add the preload
library, the GPU or the simulated driver, the socket of the slice, and the
environment.

The arguments are separated by spaces and need no quotes. The environment
contains the slice's secret, so the command writes it to a file that only you can
read, in the folder of the slice's socket, and passes the name of this file to docker
run. The file is removed with the slice.

The container runs as you, unless you add a --user after these arguments. To use a
user other than you and root, start gfaas-tokend with --client-uid.

The arguments replace the LD_PRELOAD and LD_LIBRARY_PATH of the image. To create a
slice that ends with its container, use 'gfaas run … -- docker run …' instead.`,
		Example: `  # Run a container in the slice of the instance resnet-0 of a plan
  gfaas register plan.json
  docker run $(gfaas docker-args resnet-0) IMAGE`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(_ *cobra.Command, args []string) error { return dockerArgs(t, args[0], path) },
	}
	cmd.Flags().StringVar(&path, "env-file", ".env", "file from which to read the slice's secret, as written by gfaas register (if GFAAS_SECRET is set, the secret is read from that variable instead)")
	cli.CompleteFiles(cmd, "env", "env-file")
	return cmd
}

func dockerArgs(t *tool, name, path string) error {
	reg, hash, err := tokend.Registered(t.runDir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.ExitFailure, "register the slices of a plan with 'gfaas register PLAN.json'; 'gfaas run … -- docker run …' needs no registration",
			fmt.Errorf("no slice %q is registered in %s", name, t.runDir))
	}
	if err != nil {
		return err
	}
	file, err := readEnvFile(path)
	if err != nil {
		return err
	}
	secret := os.Getenv(containercli.Secret)
	if secret == "" {
		secret = file.get(containercli.Secret)
	}
	if fmt.Sprintf("%x", sha256.Sum256([]byte(secret))) != hash {
		return cli.Fail(cli.ExitFailure, "set --env-file to the file that 'gfaas register' wrote",
			fmt.Errorf("slice %s: its secret is neither in GFAAS_SECRET nor in %s", name, path))
	}
	libs, err := preload.FindLibs()
	if err != nil {
		return err
	}
	grant := preload.Grant{Instance: name, Secret: secret, SMPct: reg.Slice().LargestSMPct(), Mem: reg.MemLimit, MPSPipeDir: file.get("CUDA_MPS_PIPE_DIRECTORY")}
	for _, a := range reg.Allocations() {
		grant.GPU = append(grant.GPU, a.Device())
	}
	guest, err := docker.NewGuest(docker.Config{RunDir: t.runDir, Libs: libs}, grant)
	if err != nil {
		return err
	}
	env := filepath.Join(tokend.InstanceSocketDir(t.runDir, name), preload.DockerEnvFile) // the token daemon removes it with the slice
	if strings.ContainsAny(env, " \t\n'\"") {
		return fmt.Errorf("cannot pass the environment file to docker run: the path of the run directory, %q, contains a space or a quote", t.runDir)
	}
	if err := containercli.WriteEnv(env, guest.Env); err != nil {
		return err
	}
	args := append(containercli.Args(guest), "--env-file", env)
	return t.env.Emit(func(w io.Writer) error { _, err := fmt.Fprintln(w, strings.Join(args, " ")); return err })
}
