package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/go-connections/nat"

	"github.com/gfaas/gfaas/pkg/adapter/localport"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
)

// defaultPort is the port that the program in a container listens on, unless the function
// sets another.
const defaultPort = 8080

// Start creates and starts a container of the instance's image, after pulling the image if
// necessary. If Start fails, it removes the container. It refuses a program that cannot be
// limited; see preload.CheckProgram.
func (r *Runtime) Start(ctx context.Context, spec instance.Spec) (instance.Handle, error) {
	if err := ctx.Err(); err != nil {
		return instance.Handle{}, err
	}
	if spec.Image == "" {
		return instance.Handle{}, fmt.Errorf("instance %s has no image to run as a container", spec.ID)
	}
	if spec.Port == 0 {
		spec.Port = defaultPort
	}
	img, err := r.engine.findImage(ctx, spec.Image)
	if err != nil {
		return instance.Handle{}, err
	}
	engine, err := r.engine.info(ctx)
	if err != nil {
		return instance.Handle{}, err
	}
	network, err := r.engine.network(ctx, r.config.Network)
	if err != nil {
		return instance.Handle{}, err
	}
	host := nat.PortBinding{HostIP: "127.0.0.1"} // any port
	if spec.Job == nil && restartPolicy(spec) != container.RestartPolicyDisabled {
		// A restarted container must keep its port, which the engine does not ensure.
		port, err := localport.Allocate(r.config.RunDir)
		if err != nil {
			return instance.Handle{}, fmt.Errorf("find a free port: %w", err)
		}
		defer port.Release()
		host.HostPort = strconv.Itoa(port.Number)
	}
	ctr, err := r.containerFor(spec, img, host, engine)
	if err != nil {
		return instance.Handle{}, err
	}
	if spec.Job != nil { // it runs to completion without serving a port
		ctr.config.ExposedPorts, ctr.host.PortBindings = nil, nil
		ctr.host.RestartPolicy.MaximumRetryCount = spec.Job.MaxRestarts
	}
	ctr.host.NetworkMode = container.NetworkMode(network)
	list, err := r.engine.preloads(ctx, img, ctr)
	if err != nil {
		return instance.Handle{}, err
	}
	if err := preload.WriteInside(ctr.socket, ctr.env, list); err != nil {
		return instance.Handle{}, err
	}
	// Not under ctx: an interrupted creation may still take place and leave a container of
	// unknown ID.
	create, cancel := detached(ctx)
	created, err := r.engine.ContainerCreate(create, ctr.config, ctr.host, nil, nil, ctr.name)
	cancel()
	if err != nil {
		return instance.Handle{}, explain("create a container of "+spec.Image, err)
	}
	handle, err := r.launch(ctx, created.ID, ctr)
	if err != nil {
		tidy, cancel := detached(ctx)
		defer cancel()
		return instance.Handle{}, errors.Join(err, r.engine.remove(tidy, created.ID))
	}
	return handle, nil
}

// launch checks and starts a created container.
func (r *Runtime) launch(ctx context.Context, id string, ctr containerSpec) (instance.Handle, error) {
	c := ctr.config
	if err := r.engine.checkProgram(ctx, id, c.Image, c.WorkingDir, ctr.env["PATH"], ctr.program()); err != nil {
		return instance.Handle{}, err
	}
	started := time.Now() // before any event of the container
	if err := r.engine.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return instance.Handle{}, explainStart(c.Image, err)
	}
	info, err := r.engine.ContainerInspect(ctx, id)
	if err != nil {
		return instance.Handle{}, explain("inspect the container", err)
	}
	handle := instance.Handle{Runtime: instance.Docker, Container: id, Started: started}
	wanted, ok := ctr.host.PortBindings[ctr.port]
	if !ok {
		return handle, nil
	}
	bindings, binding := info.NetworkSettings.Ports[ctr.port], wanted[0]
	switch {
	case binding.HostPort != "":
		handle.Address = net.JoinHostPort(binding.HostIP, binding.HostPort)
	case len(bindings) > 0:
		handle.Address = net.JoinHostPort(bindings[0].HostIP, bindings[0].HostPort)
	case info.State.Running:
		return instance.Handle{}, fmt.Errorf("the engine did not publish port %s", ctr.port.Port())
	}
	return handle, nil
}

// explainStart adds a remedy if the engine cannot provide a GPU.
func explainStart(name string, err error) error {
	text := err.Error()
	if strings.Contains(text, "could not select device driver") || strings.Contains(text, "nvidia-container-cli") {
		return unavailable(fmt.Errorf("start a container of %s: %w", name, err),
			"install the NVIDIA Container Toolkit and set it up for Docker: nvidia-ctk runtime configure")
	}
	return explain("start a container of "+name, err)
}

// containerSpec describes the container to create.
type containerSpec struct {
	name   string
	config *container.Config
	host   *container.HostConfig
	port   nat.Port
	env    map[string]string // the whole environment, including the image's
	socket string            // folder of the instance's socket, outside the container
}

func (r *Runtime) containerFor(spec instance.Spec, img image.InspectResponse, host nat.PortBinding, engine system.Info) (containerSpec, error) {
	port, err := nat.NewPort("tcp", strconv.Itoa(spec.Port))
	if err != nil {
		return containerSpec{}, err
	}
	inside, err := r.resources(spec.ID, spec.GPUs, spec.MPSPipeDir)
	if err != nil {
		return containerSpec{}, err
	}
	inside.addModels(spec.ModelFolder, r.config.Libs)
	user, err := UserFor(spec.Image, img.Config.User, os.Getuid(), os.Getgid())
	if err != nil {
		return containerSpec{}, err
	}
	// With this file, no environment variable can keep a glibc program from loading the
	// library.
	inside.mounts = append(inside.mounts, bind(filepath.Join(inside.socket, preload.PreloadFile), preload.InsidePreload, bindReadOnly))
	own, whole, err := inside.Environ(spec, img.Config.Env)
	if err != nil {
		return containerSpec{}, err
	}
	ctr := containerSpec{
		name: fmt.Sprintf("gfaas-%s-%s", spec.ID, preload.NewSecret()[:8]),
		port: port, env: whole, socket: inside.socket,
		config: &container.Config{
			Image: spec.Image, Env: own, User: user,
			ExposedPorts: nat.PortSet{port: {}},
			Labels:       map[string]string{instance.LabelInstance: spec.ID, instance.LabelFunction: spec.Function},
			Entrypoint:   img.Config.Entrypoint, Cmd: img.Config.Cmd, WorkingDir: img.Config.WorkingDir,
		},
		host: &container.HostConfig{
			PortBindings:  nat.PortMap{port: {host}},
			RestartPolicy: container.RestartPolicy{Name: restartPolicy(spec)},
			Mounts:        inside.mounts,
			IpcMode:       inside.ipc,
			Resources:     container.Resources{DeviceRequests: inside.devices},
		},
	}
	boundLog(ctr.host, engine)
	if err := fence(ctr.host, spec, engine); err != nil {
		return containerSpec{}, err
	}
	if len(spec.Command) > 0 {
		ctr.config.Entrypoint, ctr.config.Cmd = spec.Command[:1], spec.Command[1:]
	}
	if ctr.program() == "" {
		return containerSpec{}, noProgram(spec.Image)
	}
	return ctr, nil
}

// program returns the container's program, or "" if neither the image nor the function
// names one.
func (ctr containerSpec) program() string {
	return programOf(ctr.config.Entrypoint, ctr.config.Cmd)
}

func noProgram(image string) error {
	return unavailable(fmt.Errorf("image %s names no program to run", image), "add command: to the function")
}

func programOf(entrypoint, command []string) string {
	for _, words := range [][]string{entrypoint, command} {
		if len(words) > 0 {
			return words[0]
		}
	}
	return ""
}

// UserFor returns the user for the container: the user of gfaas. It returns a
// *ports.UnavailableError if the image requires another user.
func UserFor(name, spec string, uid, gid int) (string, error) {
	user, _, _ := strings.Cut(spec, ":")
	root := user == "" || user == "root" || user == "0"
	switch {
	case uid == 0 && root, user == strconv.Itoa(uid):
		return spec, nil
	case root:
		return fmt.Sprintf("%d:%d", uid, gid), nil
	}
	return "", unavailable(fmt.Errorf("image %s runs as user %s, which cannot use the GPU of user %d", name, user, uid),
		"build the image with another USER, or run gfaas as that user")
}

// socketDir creates and returns the folder of the instance's own socket, so that it can be
// mounted while the token daemon is not running. Sockets of other instances are not visible
// in the container.
func (r *Runtime) socketDir(instance string) (string, error) {
	dir, err := filepath.Abs(tokend.InstanceSocketDir(r.config.RunDir, instance))
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}
