package kerneld

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/executor"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// serveOptions are the daemon's flags.
type serveOptions struct {
	env       *cli.Env
	socket    string
	gpu       string
	gpuMem    gpu.Bytes
	hostMem   gpu.Bytes
	reqMem    gpu.Bytes
	policy    string
	isolation string
	clients   []string
	timeout   time.Duration
	listen    string
	quota     string
	sm        float64
}

func (o *serveOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.gpu, "gpu", "", "GPUs to use, like 0,1, or sim (default those that CUDA_VISIBLE_DEVICES names, else 0; sim where there is no NVIDIA driver)")
	cli.Words(cmd, "gpu", "sim")
	o.gpuMem, o.hostMem, o.reqMem = 0, 4*gpu.GiB, kernel.DefaultRequestMem
	cli.Memory(f, &o.gpuMem, "gpu-mem", "memory of each GPU for buffers, like `8GiB` (0: 8GiB, or nine tenths of what it has)")
	cli.Memory(f, &o.hostMem, "host-mem", "memory of the host for objects")
	cli.Memory(f, &o.reqMem, "request-mem", "memory of the host for requests that are not over; a client has at most what is left for others")
	cli.Choice(cmd, &o.policy, "policy", "which client goes next, and where", kernel.Policies()...)
	cli.Choice(cmd, &o.isolation, "isolation", "what clients share: a process on each GPU (keys), or none (process)", "keys", "process")
	f.StringArrayVar(&o.clients, "client", nil, "a client with a socket of its own, kernel-NAME.sock: `NAME[:WEIGHT]`")
	f.DurationVar(&o.timeout, "kernel-timeout", 10*time.Second, "how long a request's kernels may make no progress")
	f.StringVar(&o.listen, "listen", "", "also answer on this TCP address of this machine, like 127.0.0.1:9410: whoever reaches it may use it")
	f.StringVar(&o.quota, "quota", "", "REQUEST[:LIMIT]: guaranteed and largest fraction of each window, from gfaas-tokend")
	f.Float64Var(&o.sm, "sm", 100, "share of the streaming multiprocessors, in percent, from gfaas-tokend")
}

// config is what the flags ask for; what is wrong with them is wrong usage.
func (o *serveOptions) config() (kernel.Config, error) {
	c := kernel.Config{GPUMem: int64(o.gpuMem), HostMem: int64(o.hostMem), RequestMem: int64(o.reqMem), Policy: o.policy, Isolate: o.isolation == "process",
		KernelTimeout: o.timeout, Listen: o.listen}
	switch {
	case o.hostMem <= 0:
		return c, cli.Usagef("--host-mem %v: expected more than 0", o.hostMem)
	case o.reqMem <= 0:
		return c, cli.Usagef("--request-mem %v: expected more than 0", o.reqMem)
	case o.timeout < 10*time.Millisecond || o.timeout > 24*time.Hour:
		return c, cli.Usagef("--kernel-timeout %v: expected between 10ms and 24h", o.timeout)
	case o.socket == "":
		return c, cli.Usagef("--socket is empty: expected a path")
	}
	seen := map[string]bool{}
	for _, text := range o.clients {
		name, weight, weighed := strings.Cut(text, ":")
		w := 1.0
		if weighed {
			var err error
			if w, err = strconv.ParseFloat(weight, 64); err != nil || !kernel.ValidWeight(w) {
				return c, cli.Usagef("--client %s: %q is no weight, expected a number above 0", text, weight)
			}
		}
		if !kernel.ValidClient(name) || seen[name] {
			return c, cli.Usagef("--client %s: expected each name once, of at most 63 of A-Z a-z 0-9 . _ -, the first a letter or a digit", text)
		}
		seen[name] = true
		c.Clients = append(c.Clients, kernel.ClientConfig{Name: name, Weight: w})
	}
	return c, o.checkListen()
}

// checkListen wants an address of this machine alone: there are no passwords.
func (o *serveOptions) checkListen() error {
	if o.listen == "" {
		return nil
	}
	name, port, err := net.SplitHostPort(o.listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return cli.Usagef("--listen %q: expected HOST:PORT: %w", o.listen, err)
	}
	if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return cli.Usagef("--listen %s: whoever reaches it may use it: expected an address of this machine, like 127.0.0.1:%s", o.listen, port)
	}
	return nil
}

// devices are the GPUs to use.
func (o *serveOptions) devices() (names []string, err error) {
	chosen, err := devices.Choose(o.gpu)
	if err != nil {
		return nil, err
	}
	for _, d := range chosen {
		names = append(names, d.String())
	}
	if len(names) == 0 {
		names = []string{devices.Default()}
	}
	return names, nil
}

func (o *serveOptions) run(ctx context.Context, changed func(string) bool) error {
	o.env.CleansUp()
	o.env.Reloads() // there is nothing to read again
	c, err := o.config()
	if err != nil {
		return err
	}
	if c.GPUs, err = o.devices(); err != nil {
		return err
	}
	if c.Socket, err = filepath.Abs(o.socket); err != nil {
		return err
	}
	libs, err := preload.FindLibs()
	if err != nil {
		return err
	}
	program, err := executor.Find(filepath.Dir(libs.Hook))
	if err != nil {
		return err
	}
	runDir, err := filepath.Abs(cli.RunDir())
	if err != nil {
		return err
	}
	c.Private = filepath.Dir(c.Socket) == runDir
	if d, _ := gpu.ParseDevice(c.GPUs[0]); d.Simulated {
		devices.NoteSimulated(o.env)
		defer func() { _ = simgpu.Sweep() }() // of executors that were killed
	}
	s := &slices{env: o.env, runDir: runDir, libs: libs}
	defer s.leave()
	if err := s.enter(ctx, o, c.GPUs, changed); err != nil {
		return err
	}
	c.Log = o.env.Logger(o.env.Err)
	c.Ports = kernel.Ports{NewHost: newHost, Start: func(ctx context.Context, device string, h kernel.Host) (kernel.Executor, job.Hello, error) {
		e, hello, err := executor.Start(ctx, executor.Config{Path: program, Env: s.environ(device), Host: h.(*executor.Host), Stderr: quiet(o.env)})
		if err != nil {
			return nil, hello, err // not a nil *Executor
		}
		return e, hello, nil
	}}
	d, err := kernel.Open(ctx, c)
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitUnavailable, owndir.Hint, err)
	}
	if err != nil {
		return err
	}
	attrs := []any{"socket", c.Socket, "gpus", strings.Join(c.GPUs, ","), "policy", c.Policy, "isolation", o.isolation}
	if addr := d.WebAddr(); addr != nil {
		attrs = append(attrs, "listen", addr.String())
	}
	c.Log.Info("serving", attrs...)
	err = d.Serve(ctx)
	c.Log.Info("stopped")
	return err
}

func newHost(size int64) (kernel.Host, error) {
	h, err := executor.NewHost(size)
	if err != nil {
		return nil, err
	}
	return h, nil
}
