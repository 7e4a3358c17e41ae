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

// defaultPort is where a container listens unless its function says otherwise.
const defaultPort = 8080

// Start creates a container of the instance's image, pulled when it is not
// there, and starts it. What a failed start created is removed. A program of
// the image that cannot be limited is refused as preload.CheckProgram says.
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
	img, err := r.findImage(ctx, spec.Image)
	if err != nil {
		return instance.Handle{}, err
	}
	engine, err := r.info(ctx)
	if err != nil {
		return instance.Handle{}, err
	}
	network, err := r.network(ctx)
	if err != nil {
		return instance.Handle{}, err
	}
	host := nat.PortBinding{HostIP: "127.0.0.1"} // any port
	if again(spec) != container.RestartPolicyDisabled {
		// One that is started again has the same, which the engine does not see to.
		port, err := localport.Take(r.config.RunDir)
		if err != nil {
			return instance.Handle{}, fmt.Errorf("find a free port: %w", err)
		}
		defer port.Release()
		host.HostPort = strconv.Itoa(port.Number)
	}
	plan, err := r.plan(spec, img, host, engine)
	if err != nil {
		return instance.Handle{}, err
	}
	plan.host.NetworkMode = container.NetworkMode(network)
	list, err := r.preloads(ctx, img, plan)
	if err != nil {
		return instance.Handle{}, err
	}
	if err := preload.WriteInside(plan.socket, plan.env, list); err != nil {
		return instance.Handle{}, err
	}
	// Not under ctx: a creation that is cut short may still take place, and
	// nobody would know its container.
	create, cancel := detached(ctx)
	created, err := r.engine.ContainerCreate(create, plan.config, plan.host, nil, nil, plan.name)
	cancel()
	if err != nil {
		return instance.Handle{}, explain("create a container of "+spec.Image, err)
	}
	handle, err := r.launch(ctx, created.ID, plan)
	if err != nil {
		tidy, cancel := detached(ctx)
		defer cancel()
		return instance.Handle{}, errors.Join(err, r.remove(tidy, created.ID))
	}
	return handle, nil
}

// launch checks and starts a container that was created.
func (r *Runtime) launch(ctx context.Context, id string, plan plan) (instance.Handle, error) {
	if err := r.checkProgram(ctx, id, plan); err != nil {
		return instance.Handle{}, err
	}
	started := time.Now() // what the container does, it does later
	if err := r.engine.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return instance.Handle{}, explainStart(plan.config.Image, err)
	}
	info, err := r.engine.ContainerInspect(ctx, id)
	if err != nil {
		return instance.Handle{}, explain("look at the container", err)
	}
	handle := instance.Handle{Runtime: instance.Docker, Container: id, Started: started}
	bindings := info.NetworkSettings.Ports[plan.port]
	asked := plan.host.PortBindings[plan.port][0]
	switch {
	case asked.HostPort != "":
		handle.Address = net.JoinHostPort(asked.HostIP, asked.HostPort)
	case len(bindings) > 0:
		handle.Address = net.JoinHostPort(bindings[0].HostIP, bindings[0].HostPort)
	case info.State.Running:
		return instance.Handle{}, fmt.Errorf("the engine did not publish port %s", plan.port.Port())
	}
	return handle, nil
}

// explainStart adds what to do when the engine cannot give a GPU.
func explainStart(name string, err error) error {
	text := err.Error()
	if strings.Contains(text, "could not select device driver") || strings.Contains(text, "nvidia-container-cli") {
		return &Error{fmt.Errorf("start a container of %s: %w", name, err), true,
			"install the NVIDIA Container Toolkit and set it up for Docker: nvidia-ctk runtime configure"}
	}
	return explain("start a container of "+name, err)
}

// plan is how one container is to be created.
type plan struct {
	name   string
	config *container.Config
	host   *container.HostConfig
	port   nat.Port
	env    map[string]string // the whole environment, the image's included
	socket string            // the folder of the instance's socket, on this machine
}

func (r *Runtime) plan(spec instance.Spec, img image.InspectResponse, host nat.PortBinding, engine system.Info) (plan, error) {
	port, err := nat.NewPort("tcp", strconv.Itoa(spec.Port))
	if err != nil {
		return plan{}, err
	}
	inside, err := r.inside(spec.ID, spec.GPUs, spec.MPSPipeDir)
	if err != nil {
		return plan{}, err
	}
	inside.addModels(spec.ModelFolder, r.config.Libs)
	user, err := userFor(spec.Image, img.Config.User, os.Getuid(), os.Getgid())
	if err != nil {
		return plan{}, err
	}
	// No environment takes the library out of a program of glibc that has it from here.
	inside.mounts = append(inside.mounts, bind(filepath.Join(inside.socket, preload.PreloadFile), preload.InsidePreload, false))
	own, whole, err := environ(spec, img.Config.Env, inside)
	if err != nil {
		return plan{}, err
	}
	p := plan{
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
			RestartPolicy: container.RestartPolicy{Name: again(spec)},
			Mounts:        inside.mounts,
			IpcMode:       inside.ipc,
			Resources:     container.Resources{DeviceRequests: inside.devices},
		},
	}
	boundLog(p.host, engine)
	if err := fence(p.host, spec, engine); err != nil {
		return plan{}, err
	}
	if len(spec.Command) > 0 {
		p.config.Entrypoint, p.config.Cmd = spec.Command[:1], spec.Command[1:]
	}
	if p.program() == "" {
		return plan{}, &Error{fmt.Errorf("image %s names no program", spec.Image), true, "give the function a command:"}
	}
	return p, nil
}

// program is what the container runs; empty when nothing says.
func (p plan) program() string {
	for _, words := range [][]string{p.config.Entrypoint, p.config.Cmd} {
		if len(words) > 0 {
			return words[0]
		}
	}
	return ""
}

// userFor is the user that a container runs as: the one who runs gfaas. An
// image that insists on another is refused.
func userFor(name, wanted string, uid, gid int) (string, error) {
	user, _, _ := strings.Cut(wanted, ":")
	root := user == "" || user == "root" || user == "0"
	switch {
	case uid == 0 && root, user == strconv.Itoa(uid):
		return wanted, nil
	case root:
		return fmt.Sprintf("%d:%d", uid, gid), nil
	}
	return "", &Error{
		Err:     fmt.Errorf("image %s runs as user %s, who cannot use the GPU of user %d", name, user, uid),
		Missing: true,
		Remedy:  "build the image with another USER, or run gfaas as that user",
	}
}

// socketDir is the folder of the instance's own socket, there to be mounted
// even while the token daemon is away. Other instances' are not seen from
// within.
func (r *Runtime) socketDir(instance string) (string, error) {
	dir, err := filepath.Abs(tokend.InstanceSocketDir(r.config.RunDir, instance))
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}
