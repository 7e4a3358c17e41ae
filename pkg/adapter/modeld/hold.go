package modeld

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

const (
	program   = "gfaas-modeld"
	idleExit  = "5s"
	startTime = 30 * time.Second // a context on a GPU takes a while
	pollEvery = 10 * time.Millisecond
	maxLog    = 1 << 20 // bytes of a log that is appended to
)

// socketFor is the socket of the model daemon of a GPU: model.sock in the run
// directory for the first, and in a folder of the GPU's for others.
func socketFor(runDir string, of gpu.Device) string {
	if of.Index == 0 && of.MIG == "" {
		return Socket(runDir)
	}
	return Socket(filepath.Join(runDir, "models", of.String()))
}

// Ensure connects to the model daemon of a GPU, and starts it where there is none;
// one that is started so leaves when nobody has held a model or been connected for
// 5 s. Started says whether this call did it.
func Ensure(ctx context.Context, runDir, gpuName string) (c *Client, started bool, err error) {
	of, err := gpu.ParseDevice(gpuName)
	if err != nil {
		return nil, false, err
	}
	socket, err := filepath.Abs(socketFor(runDir, of))
	if err != nil {
		return nil, false, err
	}
	dir := filepath.Dir(socket)
	if err := owndir.Ensure(dir); err != nil { // or who knows who answers
		return nil, false, &Error{Err: fmt.Errorf("run directory: %w", err), Missing: true, Remedy: "set GFAAS_RUN_DIR to a folder of yours that others cannot write to"}
	}
	var missing *Error
	if c, err = Dial(ctx, socket); !errors.As(err, &missing) {
		return c, false, err
	}
	one, err := lockfile.Await(ctx, filepath.Join(dir, "modeld.start.lock"))
	if err != nil {
		return nil, false, fmt.Errorf("start the model daemon: %w", err)
	}
	defer one.Close()
	if c, err = Dial(ctx, socket); err == nil { // somebody was faster
		return c, false, nil
	}
	c, err = start(ctx, socket, of)
	return c, err == nil, err
}

// start runs the daemon in a session of its own and waits until it answers.
func start(ctx context.Context, socket string, of gpu.Device) (*Client, error) {
	path, err := detach.Find(program)
	if err != nil {
		return nil, &Error{Err: err, Missing: true, Remedy: "install gfaas as a whole, or start the daemon yourself"}
	}
	logPath := filepath.Join(filepath.Dir(socket), "modeld.log")
	if info, err := os.Lstat(logPath); err == nil && info.Size() > maxLog {
		_ = os.Rename(logPath, logPath+".old") // or else it goes on
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the model daemon: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, 2)
	if err != nil {
		return nil, fmt.Errorf("start the model daemon: %w", err)
	}
	cmd := exec.Command(path, "--gpu", of.String(), "--exit-when-idle", idleExit, "--socket", socket)
	cmd.Env = daemonEnv(os.Environ())
	cmd.Dir = "/"
	cmd.Stderr = log
	if err := detach.Start(cmd); err != nil {
		return nil, &Error{Err: fmt.Errorf("start the model daemon: %w", err), Missing: true}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return await(ctx, socket, ended, func() string { return lastLine(logPath, before) })
}

func await(ctx context.Context, socket string, ended <-chan error, said func() string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if c, err := Dial(ctx, socket); err == nil {
			return c, nil
		}
		select {
		case err := <-ended:
			return nil, &Error{Err: fmt.Errorf("%s ended at once (%v): %s", program, err, said()), Missing: true}
		case <-ctx.Done():
			return nil, fmt.Errorf("%s does not answer at %s: %w", program, socket, ctx.Err())
		case <-tick.C:
		}
	}
}

// daemonEnv takes out what would make the daemon an instance of another.
func daemonEnv(env []string) (out []string) {
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_MODEL_SOCKET", "LD_PRELOAD", "NOTIFY_SOCKET",
			"GFAAS_TENANT", "GFAAS_LISTEN", "GFAAS_OUTPUT", "GFAAS_CONFIG":
		default:
			out = append(out, kv)
		}
	}
	return out
}

// lastLine is the last line that was logged since.
func lastLine(path string, since int64) string {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) <= since {
		return "it logged nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(text[since:])), "\n")
	return lines[len(lines)-1]
}

// Held is a model that stays on the GPU.
type Held struct {
	client *Client
	name   string
	tenant string
	folder string
}

// Hold has a model of a tenant loaded from a file, and holds it until it is closed.
// The file is put first, so that another content than the last is loaded, unless
// put is false.
func Hold(ctx context.Context, c *Client, tenant, name, file string, put bool) (*Held, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("its file: %w", err)
	}
	defer f.Close()
	wait := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline) * 9 / 10 // that the daemon says what it waits for
	}
	ask := wire.Request{Name: name, Tenant: tenant, Source: file, TimeoutMS: wait.Milliseconds()}
	if _, _, err := c.Call(ctx, wire.Request{Op: wire.OpTenant, Tenant: tenant}); err != nil {
		return nil, err
	}
	if put {
		ask.Op = wire.OpPut
		if _, _, err := c.Call(ctx, ask, f); err != nil {
			return nil, err
		}
	}
	ask.Op = wire.OpGet
	_, files, err := c.Call(ctx, ask, f)
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return nil, err
	}
	return &Held{client: c, name: name, tenant: tenant, folder: TenantFolder(filepath.Dir(c.socket), tenant)}, nil
}

// Folder is where instances find model.sock, which speaks for the tenant alone.
func (h *Held) Folder() string { return h.folder }

// Keep has a process hold the model, for as long as it lives. One that has ended is
// unix.ESRCH.
func (h *Held) Keep(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	process := os.NewFile(uintptr(fd), "process")
	defer process.Close()
	_, _, err = h.client.Call(ctx, wire.Request{Op: wire.OpHold, Name: h.name, Tenant: h.tenant}, process)
	return err
}

// Close ends the connection, and what it holds itself.
func (h *Held) Close() error { return h.client.Close() }
