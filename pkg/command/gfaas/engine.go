package gfaas

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// A command of gfaas run that has a daemon start the program, as docker run does, would
// run outside the slice: the program is no child of gfaas run and inherits nothing. For
// those that start a new container, engineRun puts the slice into its arguments; the
// others are refused.

// engineRun is a command that starts a new container.
type engineRun struct {
	command []string
	at      int  // index behind the word run
	compose bool // takes fewer flags
}

// engines are the programs that start containers. The value tells that all commands are
// those of Compose.
var engines = map[string]bool{"docker": false, "podman": false, "nerdctl": false, "docker-compose": true, "podman-compose": true}

// valued are the flags before a subcommand that take the next word as their value.
var valued = strings.Fields(`--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey
	-f --file -p --project-name --profile --env-file --project-directory --ansi --parallel --progress
	-n --namespace -a --address --url --connection --root --runroot --storage-driver --identity --cgroup-manager`)

// beside are the subcommands that run a program in a container without being run.
var beside = map[string]string{
	"exec": "starts a program in a container that exists", "start": "starts a container that exists", "restart": "starts a container that exists",
	"create": "makes a container that another command starts", "up": "starts containers of a file",
}

// handing are programs that hand their command to another process, with another way.
var handing = map[string]string{
	"sudo": "sudo gfaas run … -- COMMAND", "doas": "doas gfaas run … -- COMMAND", "su": "su USER -c 'gfaas run … -- COMMAND'",
	"pkexec": "pkexec gfaas run … -- COMMAND", "runuser": "runuser -u USER -- gfaas run … -- COMMAND",
	"ssh": "ssh HOST gfaas run … -- COMMAND, with gfaas on that machine", "systemd-run": "systemd-run gfaas run … -- COMMAND",
	"machinectl": "run gfaas inside the machine",
}

// parseEngine looks at a command of gfaas run. It returns nil for one that runs as a
// process of its own, and an error for one that would leave its slice.
func parseEngine(command []string) (*engineRun, error) {
	name := filepath.Base(command[0])
	if way, found := handing[name]; found {
		return nil, refuseEngine(name+" has its command run by another process, outside the slice", "put gfaas run behind it: "+way)
	}
	compose, found := engines[name]
	if !found {
		return nil, nil
	}
	words := command[:1]
	for at := 1; at < len(command); at++ {
		word := command[at]
		flag, value, joined := strings.Cut(word, "=")
		if strings.HasPrefix(word, "-") {
			if slices.Contains(valued, flag) && !joined {
				if at++; at < len(command) {
					value = command[at]
				}
			}
			if err := checkTarget(name, flag, value); err != nil {
				return nil, err
			}
			continue
		}
		words = append(words[:len(words):len(words)], word)
		why := beside[word]
		switch {
		case word == "run":
			return &engineRun{command: command, at: at + 1, compose: compose}, checkEnviron(name)
		case word == "container" && !compose:
		case word == "compose" && !compose:
			compose = true
		case why != "":
			return nil, refuseEngine(strings.Join(words, " ")+" "+why+", outside the slice",
				"start a new one: gfaas run … -- docker run …, or docker run $(gfaas docker-args NAME) IMAGE for a registered slice")
		default:
			return nil, nil // starts nothing
		}
	}
	return nil, nil
}

func refuseEngine(what, hint string) error {
	return cli.Fail(cli.ExitUnavailable, hint, &leavesError{what})
}

// leavesError says that a command would run outside its slice.
type leavesError struct{ what string }

func (e *leavesError) Error() string { return e.what }

// checkTarget refuses flags that name an engine of another machine.
func checkTarget(name, flag, value string) error {
	switch flag {
	case "-H", "--host", "--url":
		return checkHost(name, flag, value)
	case "-c", "--context":
		if name == "docker" {
			return checkContext(value)
		}
	case "--connection", "--remote", "-r":
		if name == "podman" {
			return remoteEngine(name, flag)
		}
	}
	return nil
}

// checkEnviron refuses an environment that names an engine of another machine.
func checkEnviron(name string) error {
	if strings.HasPrefix(name, "podman") {
		return checkHost(name, "CONTAINER_HOST", os.Getenv("CONTAINER_HOST"))
	}
	if name == "nerdctl" {
		return nil
	}
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return checkHost(name, "DOCKER_HOST", host)
	}
	context := os.Getenv("DOCKER_CONTEXT")
	if context == "" {
		var config struct{ CurrentContext string }
		text, _ := os.ReadFile(filepath.Join(dockerConfig(), "config.json")) // without one the context is the default
		_ = json.Unmarshal(text, &config)
		context = config.CurrentContext
	}
	return checkContext(context)
}

func checkHost(name, by, host string) error {
	if host == "" || strings.HasPrefix(host, "unix://") || strings.HasPrefix(host, "/") {
		return nil
	}
	return remoteEngine(name, by+" "+host)
}

// dockerConfig is the folder of the docker command's settings.
func dockerConfig() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, ".docker")
}

// checkContext refuses a context of docker whose engine is on another machine, and one
// that cannot be read.
func checkContext(context string) error {
	if context == "" || context == "default" {
		return nil
	}
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	path := filepath.Join(dockerConfig(), "contexts", "meta", fmt.Sprintf("%x", sha256.Sum256([]byte(context))), "meta.json")
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &meta)
	}
	if err != nil || !strings.HasPrefix(meta.Endpoints["docker"].Host, "unix://") {
		return remoteEngine("docker", "context "+context)
	}
	return nil
}

func remoteEngine(name, by string) error {
	return refuseEngine(fmt.Sprintf("%s: %s is an engine of another machine, or may be: its containers would run outside the slice", name, by),
		"run gfaas on that machine, beside its engine: ssh HOST gfaas run … -- docker run …")
}

// into returns the command with the slice's arguments right behind run, and what is to
// be added to its environment. The secret is on no command line. cidFile, unless it is
// empty, is where the engine is to write the container's number.
func (e *engineRun) into(guest docker.Guest, cidFile string) (command []string, env map[string]string, err error) {
	var args []string
	if e.compose {
		if len(guest.GPUs) > 0 || guest.HostIPC {
			return nil, nil, refuseEngine("compose run has no flags for a GPU", "use docker run, or gfaas-place export compose for a file that Compose starts")
		}
		for _, v := range guest.Volumes() {
			args = append(args, "-v", v)
		}
		args = append(args, "--user", fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()))
	} else {
		args = containerArgs(guest)
		if cidFile != "" {
			args = append(args, "--cidfile", cidFile)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(guest.Env)) {
		if name == secretSetting {
			args = append(args, "-e", name) // its value is in the command's environment
			continue
		}
		args = append(args, "-e", name+"="+guest.Env[name])
	}
	return slices.Concat(e.command[:e.at], args, e.command[e.at:]), map[string]string{secretSetting: guest.Env[secretSetting]}, nil
}

// run starts the container and returns the command's exit status once the container has
// ended, though the command may have left it running (-d).
func (e *engineRun) run(ctx context.Context, t *tool, grant preload.Grant, ends bool) (int, error) {
	guest, err := docker.NewGuest(docker.Config{RunDir: t.runDir, Libs: grant.Libs}, grant)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "gfaas-run-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	cidFile := filepath.Join(dir, "cid")
	command, env, err := e.into(guest, cidFile)
	if err != nil {
		return 0, err
	}
	status, err := runChild(ctx, command, cli.Environ(env), ends)
	if err == nil && status == 0 {
		e.await(ctx, t, cidFile)
	}
	return status, err
}

// await waits until a container that was left running has ended. One that is gone has.
func (e *engineRun) await(ctx context.Context, t *tool, cidFile string) {
	cid, err := os.ReadFile(cidFile)
	if err != nil || len(cid) == 0 {
		return
	}
	globals := e.command[: e.at-1 : e.at-1]
	if n := len(globals); n > 1 && globals[n-1] == "container" {
		globals = globals[: n-1 : n-1]
	}
	wait := exec.CommandContext(ctx, globals[0], append(globals[1:], "wait", string(cid))...)
	wait.Cancel = func() error { return wait.Process.Signal(os.Interrupt) }
	note := time.AfterFunc(time.Second, func() { t.env.Notef("note: the container runs on; gfaas run ends with it") })
	defer note.Stop()
	_ = wait.Run()
}
