package gfaas

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

func newDockerArgs(t *tool) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "docker-args NAME",
		Short: "Print the arguments that put a container of docker run into a slice",
		Long: `Print the arguments of docker run that put its container into the slice NAME,
registered with gfaas register: the preload library, the simulated driver or
the GPU, the socket of this slice, and the environment.

The arguments are separated by spaces and need no quotes. The environment is in a
file beside the slice's socket that only you can read, since it has the slice's
secret. It is removed with the slice.
The container runs as you, unless a later --user names another user; a user other
than you and root must be named to the token daemon with --client-uid.

The image's own LD_PRELOAD and LD_LIBRARY_PATH are replaced. For a slice that lives
as long as its container, use 'gfaas run … -- docker run …'.`,
		Example: `  gfaas register plan.json
  docker run $(gfaas docker-args resnet-0) IMAGE`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(_ *cobra.Command, args []string) error { return dockerArgs(t, args[0], path) },
	}
	cmd.Flags().StringVar(&path, "env-file", ".env", "file of gfaas register with the slice's secret; not used if GFAAS_SECRET is set")
	cli.Files(cmd, "env", "env-file")
	return cmd
}

func dockerArgs(t *tool, name, path string) error {
	reg, hash, err := tokend.Registered(t.runDir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.ExitFailure, "gfaas register PLAN.json makes a plan's slices known; 'gfaas run … -- docker run …' needs none",
			fmt.Errorf("no slice %q is registered in %s", name, t.runDir))
	}
	if err != nil {
		return err
	}
	file, err := readEnvFile(path)
	if err != nil {
		return err
	}
	secret := os.Getenv(secretSetting)
	if secret == "" {
		secret = file.get(secretSetting)
	}
	if fmt.Sprintf("%x", sha256.Sum256([]byte(secret))) != hash {
		return cli.Fail(cli.ExitFailure, "name the file that gfaas register has written with --env-file",
			fmt.Errorf("slice %s: its secret is neither in GFAAS_SECRET nor in %s", name, path))
	}
	libs, err := preload.FindLibs()
	if err != nil {
		return err
	}
	grant := preload.Grant{Instance: name, Secret: secret, SMPct: reg.SMPct, Mem: reg.MemLimit, MPSPipeDir: file.get("CUDA_MPS_PIPE_DIRECTORY")}
	for _, a := range reg.Allocations() {
		grant.GPU = append(grant.GPU, a.Device())
	}
	guest, err := docker.NewGuest(docker.Config{RunDir: t.runDir, Libs: libs}, grant)
	if err != nil {
		return err
	}
	env, err := keepEnviron(t.runDir, name, guest.Env)
	if err != nil {
		return err
	}
	args := append(containerArgs(guest), "--env-file", env)
	return t.env.Emit(func(w io.Writer) error { _, err := fmt.Fprintln(w, strings.Join(args, " ")); return err })
}

// containerArgs are those of docker run, but for the environment.
func containerArgs(guest docker.Guest) (args []string) {
	for _, v := range guest.Volumes() {
		args = append(args, "-v", v)
	}
	args = append(args, "--user", fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()))
	if len(guest.GPUs) > 0 {
		args = append(args, "--gpus", `"device=`+strings.Join(guest.GPUs, ",")+`"`)
	}
	if guest.HostIPC {
		args = append(args, "--ipc", "host")
	}
	return args
}

// keepEnviron writes the environment of a slice's containers to a file that only its
// user can read and that goes with the slice, and returns its path.
func keepEnviron(runDir, name string, env map[string]string) (string, error) {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsAny(env[key], "\r\n") {
			return "", fmt.Errorf("%s: the value has a line's end, which a file of docker run cannot have", key)
		}
		fmt.Fprintf(&text, "%s=%s\n", key, env[key])
	}
	path := filepath.Join(tokend.InstanceSocketDir(runDir, name), preload.DockerEnvFile)
	if strings.ContainsAny(path, " \t\n'\"") {
		return "", fmt.Errorf("the run directory %q has a blank or a quote in its path", runDir)
	}
	return path, renameio.WriteFile(path, []byte(text.String()), 0o600)
}
