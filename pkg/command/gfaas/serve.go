package gfaas

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/gpumodel"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/daemon/async"
	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
)

type serveOptions struct {
	socket        string
	listen        string
	uiListen      string
	allowedHosts  []string
	auth          string
	authFunctions bool
	policy        string
	set           []string
	concurrency   int
	pool          int
	gpu           string
	gpuMem        gpu.Bytes
	costs         string
	fixedCosts    bool
	scaler        string
	profile       string
	gpuModel      string
	limits        gateway.Limits
	maxBody       gpu.Bytes
	buffer        gpu.Bytes
	bufferMemory  gpu.Bytes
	spill         gpu.Bytes
	bodyRate      gpu.Bytes
	startTimeout  time.Duration
	keep          bool
	park          parking
	record        string
	async         gateway.Async
	callbackAllow []string
}

const (
	defaultBufferMemory = 256 * gpu.MiB
	defaultSpill        = 4 * gpu.GiB
)

func newServe(t *tool) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the applied functions over HTTP",
		Long: `Serves every applied function at /function/NAME, and starts and stops its
instances by one of the policies of gfaas-sim queue, with the same parameters (--set).
docs/gateway.md describes the path of a call and the guarantees.

It listens on gateway.sock of the run directory, without a password, and on
--listen. Without --auth every user of the machine can call functions there, but
only the user of gfaas serve and root can use /system/ and /ui/. Web
pages cannot use /system/, except for the page at /ui/. With --ui-listen the page
is also served at an address without functions (docs/security.md).

The gateway uses instances that gfaas up started first. It stops one only after a sticky
CUDA error, if restart: of its function says so. The gateway's own instances have all SMs
of their GPU and at least 1/D of its time.

gfaas apply and gfaas rm take effect within a second. SIGHUP reads the settings,
--auth and --costs again. SIGTERM lets what is under way end within --drain,
stops the instances that it started (--keep leaves them) and ends with status 0;
a second one ends it at once. After a kill the next gateway takes the instances
over, and runs what was posted to /async-function/NAME: such calls are kept in the
folder async beside the state file until they have ended.`,
		Example: `  gfaas serve
  gfaas serve --policy mqfq-sticky --concurrency 4 --set t=5s
  gfaas serve --listen 0.0.0.0:8080 --auth ~/.config/gfaas/password
  gfaas serve --callback-allow localhost:9000 --callback-allow 10.20.0.0/16
  gfaas serve --ui-listen 127.0.0.1:8081 --allowed-host gpu-box.example.com`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, t) },
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", filepath.Join(t.runDir, "gateway.sock"), "control socket; its folder is the run directory")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "TCP address; beyond this machine it needs --auth")
	f.StringVar(&o.uiListen, "ui-listen", "", "additional TCP address for management (/ui/, /system/, /metrics), where no functions are served")
	f.StringSliceVar(&o.allowedHosts, "allowed-host", nil, "additional host `name` to accept in requests for /system/, /ui/ and /metrics (repeatable)")
	f.StringVar(&o.auth, "auth", "", "file of mode 0600 with one line user:password, required for /system/, /metrics and /ui/; none admits everybody (default: /system/ and /ui/ only for the user of gfaas serve and root)")
	f.BoolVar(&o.authFunctions, "auth-functions", false, "have calls need the password too")
	cli.Choice(cmd, &o.policy, "policy", "which call goes next, and where", policyNames()...)
	f.StringArrayVar(&o.set, "set", nil, "a parameter of the policy, like `t=10s`")
	f.IntVar(&o.concurrency, "concurrency", 2, "calls that a GPU runs at once (D); lb, lalb and lalb-o3 run one")
	f.IntVar(&o.pool, "pool", 32, "instances that exist on each GPU; -1 is no limit")
	f.StringVar(&o.gpu, "gpu", "", "GPUs to use, like 0,1, or sim (default those that CUDA_VISIBLE_DEVICES names, else all; sim where there is no NVIDIA driver)")
	cli.Memory(f, &o.gpuMem, "gpu-mem", "memory of each GPU that functions may have, like `16GiB` (default all)")
	f.StringVar(&o.costs, "costs", "", "what functions cost at first (CSV: function,warm_ms and optionally cold_ms,load_ms,mem_mib; or a profile)")
	f.BoolVar(&o.fixedCosts, "fixed-costs", false, "go by --costs, whatever is measured")
	cli.Choice(cmd, &o.scaler, "scaler", "what, beside calls that wait, starts instances, by the --profile", gateway.Scalers()...)
	f.StringVar(&o.profile, "profile", "", "profile (CSV): the slices of instances, and for a scaler what each sustains")
	f.StringVar(&o.gpuModel, gpumodel.Flag, "", "GPU model whose rows of --profile and --costs count (default that of each GPU)")
	f.IntVar(&o.limits.Queue, "max-queue", 1024, "calls that may wait, a function")
	f.DurationVar(&o.limits.QueueTimeout, "queue-timeout", time.Minute, "how long a call may wait for a place on an instance, not counting the time while one of its function starts")
	f.DurationVar(&o.limits.Timeout, "timeout", 5*time.Minute, "how long an answer may take to begin, and then each pause within it")
	f.DurationVar(&o.startTimeout, "start-timeout", launch.DefaultPatience, "how long an instance may take to become ready")
	o.maxBody, o.buffer, o.bufferMemory, o.spill, o.bodyRate = 64*gpu.MiB, 256*gpu.KiB, defaultBufferMemory, defaultSpill, gpu.KiB
	f.TextVar(&o.maxBody, "max-body", o.maxBody, "largest body of a request")
	f.TextVar(&o.buffer, "buffer", o.buffer, "how much of a body is kept: a call joins the queue when it, or so much of it, has come")
	f.TextVar(&o.bufferMemory, "buffer-memory", o.bufferMemory, "memory for the bodies of all calls, at least 4 times --buffer by default; beyond it bodies wait unread")
	f.TextVar(&o.spill, "spill", o.spill, "disk space for the bodies of calls to /v1/ that are longer than --buffer, beside the state; 0 refuses them")
	f.DurationVar(&o.limits.HeaderTimeout, "header-timeout", 10*time.Second, "how long the head of a request may take")
	f.DurationVar(&o.limits.BodyTimeout, "body-timeout", 30*time.Second, "longest pause within a request's body")
	f.TextVar(&o.bodyRate, "body-rate", o.bodyRate, "least rate of a request's body after the first --body-timeout, in bytes a second; 0 is no bound")
	f.DurationVar(&o.limits.Drain, "drain", 30*time.Second, "how long calls may take at the end")
	f.IntVar(&o.async.Concurrency, "async-concurrency", 16, "asynchronous calls that run, or whose answers are being sent, at once")
	f.IntVar(&o.async.Retries, "async-retries", 3, "how often an asynchronous call is run again after 429, 502, 503 or 504")
	f.IntVar(&o.async.CallbackRetries, "callback-retries", 5, "how often an answer is sent again that was not taken")
	f.StringSliceVar(&o.callbackAllow, "callback-allow", nil, "receivers without a public address to admit for callbacks: `CIDR|HOST[:PORT]` (repeatable)")
	f.IntVar(&o.async.Max, "max-async", 100_000, "asynchronous calls that may wait")
	f.StringVar(&o.record, "record", "", "write what happens and what is decided to this file, anew at each start (JSON lines, for gfaas-sim replay)")
	f.Var(&o.park, "park", "have the memory of instances that have no work wait on the host, where functions set gpu_mem: by swap (as gfaas run --oversubscribe), which is --park alone, or the driver's checkpoint")
	f.Lookup("park").NoOptDefVal = gateway.ParkSwap
	cli.Words(cmd, "park", gateway.ParkSwap, gateway.ParkCheckpoint)
	f.BoolVar(&o.keep, "keep", false, "leave instances running at the end")
	cli.Files(cmd, "sock", "socket")
	cli.Files(cmd, "", "auth")
	cli.Files(cmd, "csv", "costs", "profile")
	cli.Files(cmd, "jsonl", "record")
	cli.Words(cmd, "gpu", "sim")
	cli.Keys(cmd, "set", cli.ParameterKeys(queue.Parameters())...)
	return cmd
}

// parking is a way in which memory waits on the host; empty is none.
type parking string

func (p *parking) String() string { return string(*p) }
func (p *parking) Type() string   { return gateway.ParkSwap + "|" + gateway.ParkCheckpoint }

// Set implements pflag.Value. The flag alone, and true in a settings file, is swap.
func (p *parking) Set(text string) error {
	switch text {
	case gateway.ParkSwap, gateway.ParkCheckpoint:
		*p = parking(text)
	case "true":
		*p = gateway.ParkSwap
	case "false", "":
		*p = ""
	default:
		return fmt.Errorf("expected %s or %s", gateway.ParkSwap, gateway.ParkCheckpoint)
	}
	return nil
}

// checkpoints says why the token daemon cannot move memory by the driver's checkpoints,
// if so.
func checkpoints(ctx context.Context, daemon *tokend.Client, gpus []devices.GPU) error {
	for _, simulated := range []bool{true, false} {
		if !slices.ContainsFunc(gpus, func(g devices.GPU) bool { return strings.HasPrefix(g.Name, "sim") == simulated }) {
			continue
		}
		if err := daemon.CheckParking(ctx, simulated); err != nil {
			return cli.Fail(cli.ExitUnavailable, "--park=swap needs none of it", fmt.Errorf("--park=%s: %w", gateway.ParkCheckpoint, err))
		}
	}
	return nil
}

// policyNames are the policies, gfaas first: it is the default.
func policyNames() []string {
	names := []string{"gfaas"}
	for _, name := range queue.Names() {
		if name != "gfaas" {
			names = append(names, name)
		}
	}
	return names
}

// check says what is wrong with the flags, if anything.
func (o *serveOptions) check() error {
	o.limits.MaxBody, o.limits.Buffer = int64(o.maxBody), int64(o.buffer)
	if o.bufferMemory == defaultBufferMemory { // it follows --buffer
		o.bufferMemory = max(defaultBufferMemory, 4*o.buffer)
	}
	if o.spill == defaultSpill {
		o.spill = max(defaultSpill, o.maxBody)
	}
	o.limits.BufferMemory, o.limits.Spill, o.limits.BodyRate = int64(o.bufferMemory), int64(o.spill), int64(o.bodyRate)
	switch {
	case o.scaler != "none" && o.profile == "":
		return cli.Usagef("--scaler %s needs a --profile: what an instance sustains", o.scaler)
	case o.socket == "":
		return cli.Usagef("--socket is empty: expected a path")
	case o.concurrency < 1 || o.concurrency > 1<<16:
		return cli.Usagef("--concurrency %d is out of range, expected 1 to %d", o.concurrency, 1<<16)
	case o.pool < residency.Unlimited:
		return cli.Usagef("--pool %d is out of range, expected 0 or more, or -1 for no limit", o.pool)
	case o.limits.Queue < 1 || o.limits.Queue > 1<<20:
		return cli.Usagef("--max-queue %d is out of range, expected 1 to %d", o.limits.Queue, 1<<20)
	case o.limits.MaxBody < 1:
		return cli.Usagef("--max-body %s: expected more than 0", o.maxBody)
	case o.limits.Buffer < 1 || o.limits.Buffer > math.MaxInt32:
		return cli.Usagef("--buffer %s: expected more than 0, and less than 2GiB", o.buffer)
	case o.bufferMemory < gpu.MiB || o.bufferMemory < o.buffer:
		return cli.Usagef("--buffer-memory %s: expected 1MiB or more, and at least --buffer (%s)", o.bufferMemory, o.buffer)
	case o.spill < 0 || o.spill > 0 && o.spill < o.maxBody:
		return cli.Usagef("--spill %s: expected 0, or at least --max-body (%s)", o.spill, o.maxBody)
	case o.bodyRate < 0:
		return cli.Usagef("--body-rate %s: expected 0 or more", o.bodyRate)
	}
	for _, n := range []struct {
		name               string
		value, least, most int
	}{
		{"async-concurrency", o.async.Concurrency, 1, 1 << 12}, {"async-retries", o.async.Retries, 0, 16},
		{"callback-retries", o.async.CallbackRetries, 0, 16}, {"max-async", o.async.Max, 1, 10_000_000},
	} {
		if n.value < n.least || n.value > n.most {
			return cli.Usagef("--%s %d is out of range, expected %d to %d", n.name, n.value, n.least, n.most)
		}
	}
	o.async.Allow = nil
	for _, text := range o.callbackAllow {
		allowed, err := async.ParseAllowed(text)
		if err != nil {
			return cli.Usagef("--callback-allow %q: %w", text, err)
		}
		o.async.Allow = append(o.async.Allow, allowed)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"queue-timeout", o.limits.QueueTimeout, 1}, {"timeout", o.limits.Timeout, 1}, {"start-timeout", o.startTimeout, 1},
		{"header-timeout", o.limits.HeaderTimeout, 1}, {"body-timeout", o.limits.BodyTimeout, 1}, {"drain", o.limits.Drain, 0},
	} {
		if d.value < d.least {
			return cli.Usagef("--%s %v: expected more than 0", d.name, d.value)
		}
	}
	return o.checkListen()
}

// checkListen checks --listen, --ui-listen and --allowed-host. Without --auth, only
// loopback addresses are accepted.
func (o *serveOptions) checkListen() error {
	for _, flag := range []struct{ name, address string }{{"--listen", o.listen}, {"--ui-listen", o.uiListen}} {
		if err := o.checkAddress(flag.name, flag.address); err != nil {
			return err
		}
	}
	for _, name := range o.allowedHosts {
		if name == "" || strings.ContainsAny(name, "/:@*[],\" \t\r\n") {
			return cli.Usagef("--allowed-host %q: expected a host name without a port, like gateway.example.com", name)
		}
	}
	return nil
}

func (o *serveOptions) checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	hostname, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return cli.Usagef("%s %q: expected HOST:PORT: %w", flag, address, err)
	}
	ip := net.ParseIP(hostname)
	if hostname != "localhost" && (ip == nil || !ip.IsLoopback()) && o.auth == "" {
		return cli.Fail(cli.ExitUsage, "--auth FILE asks for a password; --auth none lets everybody use it",
			fmt.Errorf("%s %s is beyond this machine, and there is no --auth", flag, address))
	}
	return nil
}

// models returns the GPU models of the GPUs, sorted: "" is one that is not known.
func models(gpus []devices.GPU) []string {
	var out []string
	for _, g := range gpus {
		out = append(out, g.Model)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// loadProfile reads the profile. It notes which functions have no rows for the model of
// a GPU, and fails if the model is not known and a function has rows of several.
func (o *serveOptions) loadProfile(t *tool, gpus []devices.GPU) (map[string][]profile.Row, error) {
	rows, err := cli.Load(t.env, o.profile, profile.Read)
	if err != nil {
		return nil, err
	}
	out := map[string][]profile.Row{}
	for _, r := range rows {
		out[r.Function] = append(out[r.Function], r)
	}
	for _, model := range models(gpus) {
		for _, lack := range profile.Lacking(rows, model) {
			t.env.Notef("note: %s has no row of %s for the GPU model %s (it has rows for %s): there its instances run as without a profile; --%s names the model whose rows count",
				o.profile, lack.Function, csvfile.Quote(model), profile.Quoted(lack.Models), gpumodel.Flag)
		}
		if model != "" {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(out)) {
			if profile.Differ(out[name]) {
				return nil, gpumodel.Unknown(o.profile, profile.Models(out[name]), gpumodel.ByFlag)
			}
		}
	}
	return out, nil
}

// loadCosts reads the costs of functions. Where the GPUs are of several models, a
// profile's are those of the slowest.
func (o *serveOptions) loadCosts(t *tool, gpus []devices.GPU) (map[string]trace.Function, error) {
	out := map[string]trace.Function{}
	for _, model := range models(gpus) {
		list, err := cli.Load(t.env, o.costs, trace.ReadFunctionsOn(model))
		if several := new(trace.ModelsError); errors.As(err, &several) {
			return nil, cli.Fail(cli.ExitUsage, gpumodel.ByFlag, err)
		}
		if err != nil {
			return nil, err
		}
		for _, fn := range list {
			if known, there := out[fn.Name]; !there || fn.Warm > known.Warm {
				out[fn.Name] = fn
			}
		}
	}
	return out, nil
}

// settings reads what may change while it runs.
func (o *serveOptions) settings(t *tool, gpus []devices.GPU) (s gateway.Settings, err error) {
	s.AuthFunctions, s.FixedCosts = o.authFunctions, o.fixedCosts
	s.Open, s.AllowedHosts = o.auth == "none", slices.Clone(o.allowedHosts)
	if o.auth != "" && o.auth != "none" {
		if s.Auth, err = readCredentials(o.auth); err != nil {
			return s, err
		}
	}
	if o.profile != "" {
		if s.Profile, err = o.loadProfile(t, gpus); err != nil {
			return s, err
		}
	}
	if o.costs != "" {
		if s.Costs, err = o.loadCosts(t, gpus); err != nil {
			return s, err
		}
	}
	return s, nil
}

// readCredentials reads one line user:password from a file that nobody else reads.
func readCredentials(path string) (*gateway.Credentials, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, cli.Fail(cli.ExitFailure, "chmod 600 "+path, fmt.Errorf("%s can be read by others: its mode is %v", path, info.Mode().Perm()))
	}
	const most = 4096
	text := make([]byte, most)
	n, err := bufio.NewReader(f).Read(text)
	if err != nil && n == 0 {
		return nil, fmt.Errorf("%s:1: empty, expected user:password", path)
	}
	text = bytes.TrimRight(text[:n], "\r\n")
	user, password, ok := strings.Cut(string(text), ":")
	if !ok || user == "" || password == "" || strings.ContainsAny(string(text), "\r\n") || n == most {
		return nil, fmt.Errorf("%s:1: expected one line user:password", path)
	}
	return gateway.NewCredentials(user, password), nil
}

func (o *serveOptions) run(cmd *cobra.Command, t *tool) error {
	if err := o.check(); err != nil {
		return err
	}
	t.env.CleansUp()
	t.env.Reloads()
	options, set := queue.Defaults(), map[string]string{}
	for _, text := range o.set {
		if err := cli.SetParameter(queue.Parameters(), &options, text); err != nil {
			return err
		}
		key, value, _ := strings.Cut(text, "=")
		set[key] = value
	}
	for _, key := range queue.Ignored(slices.Sorted(maps.Keys(set)), o.policy) {
		t.env.Notef("note: --set %s: %s does not use it", key, o.policy)
	}
	ctx := cmd.Context()
	gpus, err := devices.List(ctx, o.gpu)
	if err != nil {
		return err
	}
	for i := range gpus {
		gpus[i].Model = cmp.Or(o.gpuModel, gpus[i].Model)
	}
	settings, err := o.settings(t, gpus)
	if err != nil {
		return err
	}
	socket, err := filepath.Abs(o.socket)
	if err != nil {
		return err
	}
	log := t.env.Logger(t.env.Err)
	launcher, err := host.Starter(ctx, t.env, filepath.Dir(socket), o.startTimeout)
	if err != nil {
		return err
	}
	defer launcher.Close()
	client := fnhttp.NewClient()
	defer client.Close()
	daemon := tokend.Dial(filepath.Dir(socket))
	if o.park == gateway.ParkCheckpoint {
		if err := checkpoints(ctx, daemon, gpus); err != nil {
			return err
		}
	}
	cfg := gateway.Config{
		Socket: socket, Listen: o.listen, UIListen: o.uiListen, Private: filepath.Dir(socket) == t.runDir, Log: log,
		Alone:        func(ctx context.Context) (func(), error) { return host.Exclusive(ctx, t.env, filepath.Dir(socket)) },
		AtWork:       func() bool { return host.AtWork(filepath.Dir(socket)) },
		FailedStarts: func(function string) []gateway.FailedStart { return failedStarts(filepath.Dir(socket), function) },
		Starter:      launcher, Invoker: client, Catalog: t.store, Usage: daemon.Status, Faults: daemon.Faults,
		Policy: queue.Config{Policy: o.policy, Pool: o.pool, Options: options}, Concurrency: o.concurrency,
		Settings: settings, Limits: o.limits, Keep: o.keep, Scaler: o.scaler, Park: string(o.park), Parker: daemon, Async: o.async, Version: cli.Version,
	}
	started := flagValues(cmd.Flags())
	cfg.Reload = func() (gateway.Settings, error) { return o.reload(cmd, t, gpus, log, started) }
	cfg.Async.Dir = filepath.Join(filepath.Dir(cli.StatePath()), "async")
	cfg.SpillDir = filepath.Join(filepath.Dir(cli.StatePath()), "spill")
	for _, g := range gpus {
		mem := g.Mem
		if o.gpuMem > 0 {
			mem = o.gpuMem
			noteBeyond(t.env, map[string]gpu.Bytes{g.Name: mem})
		}
		if mem == 0 {
			log.Warn("the memory of a GPU is unknown, so functions are placed on it without a limit: set --gpu-mem", "gpu", g.Name)
		}
		cfg.GPUs = append(cfg.GPUs, gateway.GPU{Name: g.Name, Mem: int64(mem), Model: g.Model})
	}
	drivers := devices.NewOccupancy()
	defer drivers.Close()
	cfg.Memory = func(_ context.Context, gpu string) (gateway.Memory, error) { return memoryOf(drivers, gpu) }
	var file *os.File
	switch o.record {
	case "":
	case "-":
		cfg.Record, cfg.Set = t.env.Out, set
	default:
		if file, err = os.OpenFile(o.record, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
			return fmt.Errorf("--record: %w", err)
		}
		defer file.Close()
		cfg.Record, cfg.Set = file, set
	}
	g, err := gateway.Open(cfg)
	var served *chassis.ServedError
	if errors.As(err, &served) {
		return cli.Fail(cli.ExitLocked, "one gateway serves all GPUs of a machine", err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitUnavailable, owndir.Hint, err)
	}
	if err != nil {
		return err
	}
	if file != nil { // not before: it could be that of another gateway
		if err := file.Truncate(0); err != nil {
			g.Close()
			return fmt.Errorf("--record: %w", err)
		}
	}
	if o.auth == "none" {
		log.Warn("everybody who can reach it may use it: --auth none", "listen", o.listen)
	}
	attrs := []any{"socket", socket, "policy", o.policy, "gpus", len(gpus), "concurrency", o.concurrency}
	if addr := g.WebAddr(); addr != nil {
		attrs = append(attrs, "listen", addr.String())
	}
	if addr := g.UIAddr(); addr != nil {
		attrs = append(attrs, "ui_listen", addr.String())
	}
	log.Info("serving", attrs...)
	return serveUntilSignals(ctx, g, log)
}

// memoryOf asks a driver how the memory of its GPU is used. Where it does not report it by
// process, as NVIDIA's may not, the sum is still known.
func memoryOf(drivers *devices.Occupancy, name string) (m gateway.Memory, err error) {
	processes, err := drivers.Processes(name)
	if err == nil {
		m.Processes = map[int]int64{}
		for pid, used := range processes {
			m.Processes[pid] = int64(used)
		}
	}
	free, total, err := drivers.Free(name)
	m.Free, m.Total = int64(free), int64(total)
	return m, err
}

// serveUntilSignals serves until the first signal has been followed, or a second
// one comes.
func serveUntilSignals(ctx context.Context, g *gateway.Gateway, log *slog.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(ctx) }()
	seen := 0
	for {
		select {
		case err := <-ended:
			log.Info("stopped")
			return err
		case <-signals:
			if seen++; seen == 2 {
				log.Warn("ended at once: instances are left to the next gateway")
				return context.Canceled
			}
		}
	}
}

// reloadable lists the flags that take effect on SIGHUP.
var reloadable = []string{"allowed-host", "auth", "auth-functions", "costs", "fixed-costs", "profile"}

// flagValues returns the value of each flag.
func flagValues(flags *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// reload reads the settings again. It logs which of them differ from started, the
// values at the start, and take effect only after a restart.
func (o *serveOptions) reload(cmd *cobra.Command, t *tool, gpus []devices.GPU, log *slog.Logger, started map[string]string) (gateway.Settings, error) {
	before := *o
	err := t.env.Reread(cmd.Flags())
	if err == nil {
		err = o.check()
	}
	var s gateway.Settings
	if err == nil {
		s, err = o.settings(t, gpus)
	}
	if err != nil {
		*o = before
		return s, err
	}
	log.Info("settings read again")
	changed := map[string]bool{}
	for name, value := range flagValues(cmd.Flags()) {
		changed[name] = value != started[name] && !slices.Contains(reloadable, name)
	}
	cli.NoteRestart(log, changed)
	return s, nil
}
