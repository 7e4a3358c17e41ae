package modeld

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

const (
	idleExit  = "5s"
	startTime = 30 * time.Second // creating a GPU context takes a while
)

// socketFor returns the socket of the model daemon for a GPU: model.sock in the run directory for the
// first GPU, and in a folder of its own for any other.
func socketFor(runDir string, device gpu.Device) string {
	if device.Index == 0 && device.MIG == "" {
		return Socket(runDir)
	}
	return Socket(filepath.Join(runDir, "models", device.String()))
}

// Ensure connects to the model daemon of a GPU and starts it if none runs. A daemon started in this way
// exits after 5 s without a client or a holder. started reports whether this call started it.
func Ensure(ctx context.Context, runDir, gpuName string) (c *Client, started bool, err error) {
	device, err := gpu.ParseDevice(gpuName)
	if err != nil {
		return nil, false, err
	}
	socket, err := filepath.Abs(socketFor(runDir, device))
	if err != nil {
		return nil, false, err
	}
	dir := filepath.Dir(socket)
	if err := owndir.Ensure(dir); err != nil { // otherwise another user's program could answer
		const remedy = "set GFAAS_RUN_DIR to a folder of yours that others cannot write to"
		return nil, false, unavailable(remedy, "run directory: %w", err)
	}
	var missing *ports.UnavailableError
	if c, err = Dial(ctx, socket); !errors.As(err, &missing) {
		return c, false, err
	}
	lock, err := lockfile.Await(ctx, filepath.Join(dir, "modeld.start.lock"))
	if err != nil {
		return nil, false, fmt.Errorf("start the model daemon: %w", err)
	}
	defer lock.Close()
	if c, err = Dial(ctx, socket); err == nil { // another process has started it meanwhile
		return c, false, nil
	}
	c, err = start(ctx, socket, device)
	return c, err == nil, err
}

// start starts the daemon and connects to it when it answers.
func start(ctx context.Context, socket string, device gpu.Device) (c *Client, err error) {
	err = detach.Daemon{
		Program: "gfaas-modeld", Name: "model daemon",
		Args: []string{"--gpu", device.String(), "--exit-when-idle", idleExit, "--socket", socket},
		// Without the variables that would make the daemon part of an instance, or configure it unintentionally.
		Env: detach.Without(os.Environ(), "GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_MODEL_SOCKET",
			"LD_PRELOAD", "NOTIFY_SOCKET", "GFAAS_TENANT", "GFAAS_LISTEN", "GFAAS_OUTPUT", "GFAAS_CONFIG"),
		Socket: socket, Log: filepath.Join(filepath.Dir(socket), "modeld.log"), Timeout: startTime,
	}.StartAndWait(ctx, func(ctx context.Context) bool {
		var failed error
		c, failed = Dial(ctx, socket)
		return failed == nil
	})
	return c, err
}

// HeldModel is a model that its connection holds on the GPU.
type HeldModel struct {
	client       *Client
	name, tenant string
}

// Hold loads a model of a tenant from a file and holds it until Close. If put is set, it puts the file
// first, so that changed content replaces an earlier version. It also creates the tenant's socket.
func Hold(ctx context.Context, c *Client, tenant, name, file string, put bool) (*HeldModel, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("open the model's file: %w", err)
	}
	defer f.Close()
	wait := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline) * 9 / 10 // so that the daemon's error, with the reason, arrives before ctx ends
	}
	request := wire.Request{Name: name, Tenant: tenant, Source: file, TimeoutMS: wait.Milliseconds()}
	if _, _, err := c.Call(ctx, wire.Request{Op: wire.OpTenant, Tenant: tenant}); err != nil {
		return nil, err
	}
	if put {
		request.Op = wire.OpPut
		if _, _, err := c.Call(ctx, request, f); err != nil {
			return nil, err
		}
	}
	request.Op = wire.OpGet
	_, files, err := c.Call(ctx, request, f)
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return nil, err
	}
	return &HeldModel{c, name, tenant}, nil
}

// Folder returns the folder with the tenant's model.sock, to be given to instances.
func (h *HeldModel) Folder() string { return TenantFolder(filepath.Dir(h.client.socket), h.tenant) }

// ExtendTo makes a process hold the model until it ends. It returns unix.ESRCH if the process has
// ended.
func (h *HeldModel) ExtendTo(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	process := os.NewFile(uintptr(fd), "process")
	defer process.Close()
	_, _, err = h.client.Call(ctx, wire.Request{Op: wire.OpHold, Name: h.name, Tenant: h.tenant}, process)
	return err
}

// Close closes the connection and releases its hold. Processes given to ExtendTo continue to hold the model.
func (h *HeldModel) Close() error { return h.client.Close() }
