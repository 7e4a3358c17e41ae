// Package containercli puts the containers of command lines such as docker run into a slice.
//
// gfaas run gives the slice to its child processes. But docker run makes a daemon start the
// program, which therefore inherits nothing from gfaas run and would run outside the slice. For
// commands that start a new container, Command adds the slice to their arguments. Parse refuses
// other commands that make another process start a program.
package containercli

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/adapter/child"
	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Command is a command line that starts a new container.
type Command struct {
	words    []string
	afterRun int  // index of the word after run
	compose  bool // a command of Compose, which accepts fewer flags
}

// engines are the programs that start containers. The value is true if all commands
// of the program are commands of Compose.
var engines = map[string]bool{"docker": false, "podman": false, "nerdctl": false, "docker-compose": true, "podman-compose": true}

// flagsWithValue are the flags before a subcommand whose value is the next word.
var flagsWithValue = strings.Fields(`--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey
	-f --file -p --project-name --profile --env-file --project-directory --ansi --parallel --progress
	-n --namespace -a --address --url --connection --root --runroot --storage-driver --identity --cgroup-manager`)

// refusedSubcommands maps the subcommands, other than run, that run a program in a container to
// what they do.
var refusedSubcommands = map[string]string{
	"exec": "starts a program in an existing container", "start": "starts an existing container", "restart": "starts an existing container",
	"create": "creates a container that another command starts", "up": "starts the containers of a file",
}

// indirectPrograms maps programs that make another process run their command to the command line
// to use instead.
var indirectPrograms = map[string]string{
	"sudo": "sudo gfaas run … -- COMMAND", "doas": "doas gfaas run … -- COMMAND", "su": "su USER -c 'gfaas run … -- COMMAND'",
	"pkexec": "pkexec gfaas run … -- COMMAND", "runuser": "runuser -u USER -- gfaas run … -- COMMAND",
	"ssh": "ssh HOST gfaas run … -- COMMAND, with gfaas on that machine", "systemd-run": "systemd-run gfaas run … -- COMMAND",
	"machinectl": "run gfaas inside the machine",
}

// Parse parses a command line. It returns nil for a command that runs as a process, and a
// *RefusedError for a command that would run outside its slice.
func Parse(command []string) (*Command, error) {
	name := filepath.Base(command[0])
	if alternative, found := indirectPrograms[name]; found {
		return nil, refuse(name+" runs its command through another process, outside the slice", "put gfaas run behind it: "+alternative)
	}
	compose, found := engines[name]
	if !found {
		return nil, nil
	}
	words := command[:1] // the program and its subcommands, without flags
	for i := 1; i < len(command); i++ {
		word := command[i]
		flag, value, hasValue := strings.Cut(word, "=")
		if strings.HasPrefix(word, "-") {
			if slices.Contains(flagsWithValue, flag) && !hasValue {
				if i++; i < len(command) {
					value = command[i]
				}
			}
			if err := checkEngineFlag(name, flag, value); err != nil {
				return nil, err
			}
			continue
		}
		words = append(words[:len(words):len(words)], word)
		effect := refusedSubcommands[word]
		switch {
		case word == "run":
			return &Command{words: command, afterRun: i + 1, compose: compose}, checkEnviron(name)
		case word == "container" && !compose:
		case word == "compose" && !compose:
			compose = true
		case effect != "":
			return nil, refuse(strings.Join(words, " ")+" "+effect+", outside the slice",
				"start a new one: gfaas run … -- docker run …, or docker run $(gfaas docker-args NAME) IMAGE for a registered slice")
		default:
			return nil, nil // the command starts no program
		}
	}
	return nil, nil
}

func refuse(message, hint string) error {
	return &RefusedError{ports.UnavailableError{Err: errors.New(message), Remedy: hint}}
}

// RefusedError reports a command that would run outside its slice.
type RefusedError struct{ ports.UnavailableError }

// checkEngineFlag returns an error if a flag names an engine of another machine.
func checkEngineFlag(name, flag, value string) error {
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

// checkEnviron returns an error if the environment names an engine of another machine.
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

// checkHost returns an error unless host is empty or the path of a socket. source is the flag or
// variable that names the host.
func checkHost(name, source, host string) error {
	if host == "" || strings.HasPrefix(host, "unix://") || strings.HasPrefix(host, "/") {
		return nil
	}
	return remoteEngine(name, source+" "+host)
}

// dockerConfig returns the folder of the docker command's settings.
func dockerConfig() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, ".docker")
}

// checkContext returns an error if the engine of a context of docker is on another machine, or
// if the context cannot be read.
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

// remoteEngine returns the error for a command whose engine may be on another machine. source is
// the flag, variable or context that names the engine.
func remoteEngine(name, source string) error {
	return refuse(fmt.Sprintf("%s: the engine of %s may be on another machine, where its containers would run outside the slice", name, source),
		"run gfaas on the machine of the engine: ssh HOST gfaas run … -- docker run …")
}

// withSlice returns the command with the arguments of the slice right after run, and the variables
// to add to its environment: the secret, which must not be on a command line. cidFile is the file
// to which the engine writes the ID of the container.
func (c *Command) withSlice(guest docker.Guest, cidFile string) (command []string, env map[string]string, err error) {
	args := Args(guest)
	switch {
	case !c.compose:
		args = append(args, "--cidfile", cidFile)
	case len(guest.GPUs) > 0 || guest.HostIPC:
		return nil, nil, refuse("compose run has no flags for a GPU",
			"use docker run, or gfaas-place export compose for a file that Compose starts")
	}
	for _, name := range slices.Sorted(maps.Keys(guest.Env)) {
		if name == Secret {
			args = append(args, "-e", name) // the value is in the command's environment
			continue
		}
		args = append(args, "-e", name+"="+guest.Env[name])
	}
	return slices.Concat(c.words[:c.afterRun], args, c.words[c.afterRun:]), map[string]string{Secret: guest.Env[Secret]}, nil
}

// Run starts the container in the slice of guest. It waits until the container has ended, even if
// the command leaves it running in the background (-d), and returns the command's exit status. If
// killWithParent is true, the kernel kills the command when this process is killed. Run calls
// noteWait after it has waited for a second for a container in the background.
func (c *Command) Run(ctx context.Context, guest docker.Guest, killWithParent bool, noteWait func()) (int, error) {
	dir, err := os.MkdirTemp("", "gfaas-run-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	cidFile := filepath.Join(dir, "cid")
	command, env, err := c.withSlice(guest, cidFile)
	if err != nil {
		return 0, err
	}
	status, err := child.Run(ctx, command, env, killWithParent)
	if err == nil && status == 0 {
		c.awaitContainer(ctx, cidFile, noteWait)
	}
	return status, err
}

// awaitContainer waits until the container has ended or does not exist any more.
func (c *Command) awaitContainer(ctx context.Context, cidFile string, noteWait func()) {
	cid, err := os.ReadFile(cidFile)
	if err != nil || len(cid) == 0 {
		return
	}
	globals := c.words[: c.afterRun-1 : c.afterRun-1] // the program and its global flags
	if n := len(globals); n > 1 && globals[n-1] == "container" {
		globals = globals[: n-1 : n-1]
	}
	wait := exec.CommandContext(ctx, globals[0], append(globals[1:], "wait", string(cid))...)
	wait.Cancel = func() error { return wait.Process.Signal(os.Interrupt) }
	timer := time.AfterFunc(time.Second, noteWait)
	defer timer.Stop()
	_ = wait.Run()
}

// Secret is the name of the variable with the secret by which the processes of a slice identify
// themselves to the token daemon.
const Secret = "GFAAS_SECRET"

// Args returns the arguments of docker run that put a container into the slice of guest,
// without the environment.
func Args(guest docker.Guest) (args []string) {
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

// WriteEnv writes the environment of a slice's containers to a file for docker run --env-file. Only
// the user can read the file.
func WriteEnv(path string, env map[string]string) error {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsAny(env[key], "\r\n") {
			return fmt.Errorf("cannot pass %s to docker run: the value contains a line break", key)
		}
		fmt.Fprintf(&text, "%s=%s\n", key, env[key])
	}
	return renameio.WriteFile(path, []byte(text.String()), 0o600)
}
