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

// serveOptions holds the daemon's flags.
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
	runTTL    time.Duration
	listen    string
	quota     string
	sm        float64
}

func (o *serveOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.gpu, "gpu", "", "GPUs to use, like 0,1, or sim (default: the GPUs in CUDA_VISIBLE_DEVICES, or 0; sim if there is no NVIDIA driver)")
	cli.CompleteWords(cmd, "gpu", "sim")
	o.gpuMem, o.hostMem, o.reqMem = 0, 4*gpu.GiB, kernel.DefaultRequestMem
	cli.Memory(f, &o.gpuMem, "gpu-mem", "memory of each GPU for buffers, as a `size` like 16GiB; 0 means 8GiB, but at most nine tenths of the GPU's memory")
	cli.Memory(f, &o.hostMem, "host-mem", "host memory for objects")
	cli.Memory(f, &o.reqMem, "request-mem", "host memory for the requests in progress of all clients; a single client can use half of it")
	cli.Choice(cmd, &o.policy, "policy", "policy that chooses the next client and its GPU", kernel.Policies()...)
	cli.Choice(cmd, &o.isolation, "isolation", "how clients are isolated, by object keys in one process per GPU, or by a process for each client", "keys", "process")
	f.StringArrayVar(&o.clients, "client", nil, "client with a socket of its own, kernel-NAME.sock, and a weight for its part of the GPU time, as `NAME[:WEIGHT]` (repeatable)")
	f.DurationVar(&o.timeout, "kernel-timeout", 10*time.Second, "how long the kernels of a request may make no progress")
	f.DurationVar(&o.runTTL, "run-ttl", 10*time.Minute, "how long the results of an asynchronous run are stored after it has finished")
	f.StringVar(&o.listen, "listen", "", "also serve on this loopback TCP address, like 127.0.0.1:9410, to everyone who can connect to it")
	f.StringVar(&o.quota, "quota", "", "quota of the slice in which the kernels run: the guaranteed and the maximum fraction of each time window, as `REQUEST[:LIMIT]`, like 0.3:0.8")
	f.Float64Var(&o.sm, "sm", 100, "SM share of the slice in which the kernels run, in percent")
}

// config returns the configuration for the flags, or a usage error.
func (o *serveOptions) config() (kernel.Config, error) {
	c := kernel.Config{GPUMem: int64(o.gpuMem), HostMem: int64(o.hostMem), RequestMem: int64(o.reqMem), Policy: o.policy, Isolate: o.isolation == "process",
		KernelTimeout: o.timeout, RunTTL: o.runTTL, Listen: o.listen}
	switch {
	case o.hostMem <= 0:
		return c, cli.Usagef("--host-mem %v: expected more than 0", o.hostMem)
	case o.reqMem <= 0:
		return c, cli.Usagef("--request-mem %v: expected more than 0", o.reqMem)
	case o.timeout < 10*time.Millisecond || o.timeout > 24*time.Hour:
		return c, cli.Usagef("--kernel-timeout %v: expected between 10ms and 24h", o.timeout)
	case o.runTTL < time.Second:
		return c, cli.Usagef("--run-ttl %v: expected 1s or more", o.runTTL)
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
				return c, cli.Usagef("--client %s: invalid weight %q: expected a number from 0.000001 to 1000000", text, weight)
			}
		}
		if !kernel.ValidClient(name) || seen[name] {
			return c, cli.Usagef("--client %s: expected a name that is given once, of at most 63 of A-Z a-z 0-9 . _ -, the first a letter or a digit", text)
		}
		seen[name] = true
		c.Clients = append(c.Clients, kernel.ClientConfig{Name: name, Weight: w})
	}
	local, err := cli.CheckAddress("--listen", o.listen)
	if err == nil && !local { // the daemon does not authenticate clients
		_, port, _ := net.SplitHostPort(o.listen)
		err = cli.Usagef("--listen %s: there is no authentication, so expected an address of this machine only, like 127.0.0.1:%s", o.listen, port)
	}
	return c, err
}

// devices returns the names of the GPUs to use.
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
	o.env.Reloads() // SIGHUP is harmless: there are no settings to read again
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
		defer func() { _ = simgpu.Sweep() }() // after executors that were killed
	}
	s := &executorSlices{env: o.env, runDir: runDir, libs: libs}
	defer s.unregister()
	if err := s.enter(ctx, o, c.GPUs, changed); err != nil {
		return err
	}
	c.Log = o.env.Logger(o.env.Err)
	c.Ports = kernel.Ports{NewHost: newHost, Start: func(ctx context.Context, device string, h kernel.Host) (kernel.Executor, job.Hello, error) {
		e, hello, err := executor.Start(ctx, executor.Config{Path: program, Env: s.environs[device], Host: h.(*executor.Host), Stderr: executorOutput(o.env)})
		if err != nil {
			return nil, hello, err // an untyped nil, not a nil *Executor
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
