package gfaas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
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
	"github.com/gfaas/gfaas/pkg/adapter/swarm"
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
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/policy/placement"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
)

// serveOptions holds the flags of gfaas serve. Flags that correspond to a field of gateway.Config set that
// field directly.
type serveOptions struct {
	gateway.Config

	auth          string
	set           []string
	scalerSet     []string
	placementSet  []string
	gpu           string
	gpuMem        gpu.Bytes
	costs         string
	profile       string
	gpuModel      string
	startTimeout  time.Duration
	record        string
	utilization   string
	callbackAllow []string

	swarm   bool
	network string
	keyFile string
	fleet   *host.Fleet // set by run with --swarm

	supersede func() // ends the gateway, because another one has taken over
}

// Defaults that grow with --buffer and --max-body, in bytes.
const (
	defaultBufferMemory = 256 << 20
	defaultSpill        = 4 << 30
)

func newServe(t *tool) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the applied functions over HTTP",
		Long: `Serve every applied function at /function/NAME. A policy (--policy) decides which
call runs next and on which GPU, and so which instances the gateway starts and stops.
gfaas-sim queue --help describes the policies and their parameters (--set). The page
docs/gateway.md of the source describes the path of a call and the guarantees.

The gateway listens on gateway.sock in the run directory, without a password, and at
the address --listen. Without --auth, every user of the machine can call functions at
--listen, but only the user of gfaas serve and root can use the paths /system/ (API for
management), /models/load, /models/unload and /ui/ (web page). Other web pages cannot
use them. With --ui-listen, the gateway serves these paths and /metrics at one more
address, at which no function can be called (docs/security.md).

Calls go to instances of gfaas up first. The gateway does not stop these instances,
with one exception: if a process of such an instance gets a CUDA error after which all
its CUDA calls fail, and the function has restart: on-failure or restart: always, the
gateway restarts the instance. Instances that the gateway starts have all SMs of
their GPU and at least 1/N of its time, where N is the value of --concurrency. With
--side-by-side, up to N of them run at the same time. With --profile, they have the
slice of a row of the profile instead. The keys sm, quota and gpu_mem of a function
override both.

With --scaler, the gateway adjusts the number of instances to the load (gfaas-sim scale
--help describes the scalers and the estimators). --placement selects the GPUs of these
instances:

` + placementHelp() + `
Calls of a function with the key batcher are sent together, as batches.

With --swarm, the gateway starts instances on the nodes of a Docker swarm, as services. It
needs a manager: the engine in DOCKER_HOST, or at the local socket. It runs in a container
on the overlay network of the instances (--network). The GPUs of all nodes count as the
gateway's GPUs, under names like gpu-1/0; nodes may join, fail and be drained while it
runs (gfaas node). Only functions with an image: can run, under grants that the gateway
signs (--grant-key). The swarm's managers store the functions and the records of instances,
so that the next gateway on any node continues with them. docs/fleet.md describes how to
run the gateway as a service of the swarm (with --keep), and the failures.

gfaas apply and gfaas rm take effect within a second. On SIGHUP, the gateway reads
--allowed-host, --auth, --auth-functions, --cors, --costs, --fixed-costs and --profile again.

On SIGTERM, running calls may take up to --drain to end. Then the gateway stops the
instances that it started, unless --keep is given, and exits with status 0. A second
SIGTERM ends it at once, with status 143. If the gateway is killed, the next one takes over its
instances and runs the calls that were posted to /async-function/NAME. These calls
are stored in the folder async next to the state file until they have ended.`,
		Example: `  # Serve functions to this machine on port 8080
  gfaas serve

  # Use another policy, with 4 instances at once that run calls on each GPU
  gfaas serve --policy mqfq-sticky --concurrency 4 --set t=5s

  # Scale functions by a profile, and place their instances as FaST-GShare does
  gfaas serve --profile profile.csv --scaler heuristic --placement maxrect

  # Serve functions to the network, and require a password for management
  gfaas serve --listen 0.0.0.0:8080 --auth ~/.config/gfaas/password

  # Admit receivers of callbacks that have no public address
  gfaas serve --callback-allow localhost:9000 --callback-allow 10.20.0.0/16

  # Serve functions on all nodes of a swarm (in a container on the network gfaas)
  gfaas serve --swarm --grant-key /run/secrets/grant.key --listen 0.0.0.0:8080 --auth /run/secrets/auth

  # Serve management at an address of its own, also under a host name
  gfaas serve --ui-listen 127.0.0.1:8081 --allowed-host gpu-box.example.com

  # Let a web page of another origin, such as a chat UI, call functions
  gfaas serve --cors https://chat.example.com --cors http://localhost:3000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, t) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Socket, "socket", filepath.Join(t.runDir, "gateway.sock"), "socket for commands such as gfaas invoke; the folder of this socket is used as the run directory")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "TCP address; an address that is not loopback needs --auth")
	f.StringVar(&o.UIListen, "ui-listen", "", "additional TCP address for management (/ui/, /system/, /metrics), at which no function can be called")
	f.StringSliceVar(&o.Settings.AllowedHosts, "allowed-host", nil, "additional host `name` to accept in requests for /system/, /ui/ and /metrics (repeatable)")
	f.StringVar(&o.auth, "auth", "", "`file` of mode 0600 with one line user:password, which clients must send for /system/, /metrics and /ui/; with the word none instead of a file, every client is admitted (default: no password; only the user of gfaas serve and root can use /system/ and /ui/)")
	f.BoolVar(&o.Settings.AuthFunctions, "auth-functions", false, "require the password for function calls as well")
	f.StringSliceVar((*[]string)(&o.Settings.Origins), "cors", nil, "`origin` of web pages that may call functions and read the answers, like https://chat.example.com; with *, pages of every origin may, without the credentials of the browser; never /system/, /ui/ and /metrics (repeatable)")
	cli.Choice(cmd, &o.Policy.Policy, "policy", "policy that chooses the next call and its GPU", policyNames()...)
	f.StringArrayVar(&o.set, "set", nil, "parameter of the policy, as `KEY=VALUE`, like t=10s (repeatable)")
	f.IntVar(&o.Concurrency, "concurrency", 2, "limit on the gateway's own instances that run calls on a GPU at once (slots); lb, lalb and lalb-o3 always use 1. Other policies do not apply it to functions with inflight above 1 whose instances fit in memory together")
	f.DurationVar(&o.BatchWindow, "batch-window", time.Second, "how long calls of a function with inflight above 1 join the calls that an instance runs, while a call of another function waits for an instance (default for functions without batch_window)")
	f.BoolVar(&o.SideBySide, "side-by-side", false, "let instances without a slice of --profile run at the same time on all SMs of a GPU, instead of in turns; needs MPS, under which a fatal CUDA error of one instance ends all")
	f.IntVar(&o.Policy.Pool, "pool", 32, "maximum number of instances per GPU; -1 for no limit")
	f.StringVar(&o.gpu, "gpu", "", "GPUs to use, like 0,1, or sim (default: the GPUs in CUDA_VISIBLE_DEVICES or all; sim if there is no NVIDIA driver)")
	cli.Memory(f, &o.gpuMem, "gpu-mem", "memory of each GPU that functions may use, as a `size` like 16GiB (default all)")
	f.StringVar(&o.costs, "costs", "", "file with the initial costs of functions: a profile, or CSV with the columns function,warm_ms and optionally cold_ms,load_ms,mem_mib")
	f.BoolVar(&o.Settings.FixedCosts, "fixed-costs", false, "use the costs from --costs and ignore measurements")
	cli.Choice(cmd, &o.Scaler, "scaler", "autoscaler that decides the number of instances (needs --profile); with none, waiting calls start them", gateway.Scalers()...)
	cli.Choice(cmd, &o.Estimator, "estimator", "estimator of the load for the scalers "+strings.Join(scale.Estimating(), " and ")+" (gfaas-sim scale --help describes them)", scale.Estimators()...)
	f.StringArrayVar(&o.scalerSet, "scaler-set", nil, "parameter of the scaler or its estimator, as `KEY=VALUE`, like out=20 (repeatable)")
	cli.Choice(cmd, &o.Placement, "placement", "placement of the instances of scaled functions (other than policy: needs --scaler)", placement.Names()...)
	f.StringArrayVar(&o.placementSet, "placement-set", nil, "parameter of the placement, as `KEY=VALUE`, like gamma=1.2 (repeatable)")
	f.StringVar(&o.profile, "profile", "", "profile (CSV) with the slices of instances and, for a scaler, their throughput")
	f.StringVar(&o.gpuModel, gpumodel.Flag, "", "use the rows of --profile and --costs for this GPU model (default: the model of each GPU)")
	f.IntVar(&o.Queue, "max-queue", 1024, "maximum number of waiting calls per function")
	f.DurationVar(&o.QueueTimeout, "queue-timeout", time.Minute, "how long a call may wait for an instance, not counting time in which an instance of its function starts")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long an answer may take to begin, and how long it may pause after that")
	f.DurationVar(&o.startTimeout, "start-timeout", launch.DefaultReadyTimeout, "how long an instance may take to become ready")
	size := func(value *int64, name string, standard gpu.Bytes, usage string) {
		f.TextVar((*gpu.Bytes)(value), name, standard, usage)
	}
	size(&o.MaxBody, "max-body", 64*gpu.MiB, "maximum `size` of a request body")
	size(&o.Buffer, "buffer", 256*gpu.KiB, "read up to this `size` of a request body before the call is queued, and keep it until the call ends")
	size(&o.BufferMemory, "buffer-memory", defaultBufferMemory, "limit on the memory for the request bodies of all calls together, as a `size`; further bodies are not read until memory is free; without this flag, the limit rises with --buffer, to 4 times its value")
	size(&o.Spill, "spill", defaultSpill, "limit on the disk space, next to the state, for the parts beyond --buffer of request bodies that name a model (/v1/), as a `size`; 0 refuses calls with larger bodies than --buffer")
	f.DurationVar(&o.HeaderTimeout, "header-timeout", 10*time.Second, "how long the head of a request may take")
	f.DurationVar(&o.BodyTimeout, "body-timeout", 30*time.Second, "longest pause while reading a request body")
	size(&o.BodyRate, "body-rate", gpu.KiB, "minimum rate of a request body that takes longer than --body-timeout, as a `size` per second; 0 for no minimum")
	f.DurationVar(&o.Drain, "drain", 30*time.Second, "how long to let running calls finish on shutdown")
	f.IntVar(&o.Async.Concurrency, "async-concurrency", 16, "limit on asynchronous calls that run or whose answers are being delivered")
	f.IntVar(&o.Async.Retries, "async-retries", 3, "how many times to retry an asynchronous call that was answered with status 429, 502, 503 or 504")
	f.IntVar(&o.Async.CallbackRetries, "callback-retries", 5, "how many times to retry a failed callback")
	f.StringSliceVar(&o.callbackAllow, "callback-allow", nil, "receiver of callbacks that is allowed although its address is not public, as `CIDR|HOST[:PORT]` (repeatable)")
	f.IntVar(&o.Async.Max, "max-async", 100_000, "limit on asynchronous calls that have not ended")
	f.StringVar(&o.record, "record", "", "`file` for a record of all events and decisions, overwritten at each start (JSON lines, for gfaas-sim replay)")
	f.Var((*parking)(&o.Park), "park", "park the GPU memory of idle instances on the host when a policy decides so: with swap (the value of --park alone), the preload library moves the memory, as with gfaas run --oversubscribe; with checkpoint, the driver moves it")
	f.Lookup("park").NoOptDefVal = gateway.ParkSwap
	cli.CompleteWords(cmd, "park", gateway.ParkSwap, gateway.ParkCheckpoint)
	cli.Choice(cmd, &o.utilization, "utilization-source", "for --set utilization=, the source of the utilization of GPUs: the token daemon (GPU time of instances) or NVML (time with any kernel of any program, which is about 100% whenever something runs)", fromTokend, fromNVML)
	f.BoolVar(&o.swarm, "swarm", false, "start instances on the nodes of a Docker swarm, as services")
	f.StringVar(&o.network, "network", swarm.DefaultNetwork, "with --swarm: attachable overlay network of the instances, which the gateway's container must be on")
	f.StringVar(&o.keyFile, "grant-key", "", "with --swarm: private key `file` (gfaas grant keygen) that signs the grants of instances")
	f.BoolVar(&o.Keep, "keep", false, "leave instances running on exit")
	cli.CompleteFiles(cmd, "sock", "socket")
	cli.CompleteFiles(cmd, "", "auth")
	cli.CompleteFiles(cmd, "csv", "costs", "profile")
	cli.CompleteFiles(cmd, "jsonl", "record")
	cli.CompleteFiles(cmd, "key", "grant-key")
	cli.CompleteWords(cmd, "gpu", "sim")
	cli.Keys(cmd, "set", cli.ParameterKeys(queue.Parameters())...)
	cli.Keys(cmd, "scaler-set", scalerKeys()...)
	cli.Keys(cmd, "placement-set", placementKeys()...)
	return cmd
}

// check validates the flags. It also sets values that follow from others.
func (o *serveOptions) check() error {
	if o.BufferMemory == defaultBufferMemory {
		o.BufferMemory = max(defaultBufferMemory, 4*o.Buffer)
	}
	if o.Spill == defaultSpill {
		o.Spill = max(defaultSpill, o.MaxBody)
	}
	switch {
	case o.Scaler != "none" && o.profile == "":
		return cli.Usagef("--scaler %s needs --profile, for the throughput of instances", o.Scaler)
	case o.Estimator != "last" && !slices.Contains(scale.Estimating(), o.Scaler):
		return cli.Usagef("--estimator %s has no effect with --scaler %s: expected --scaler %s", o.Estimator, o.Scaler, strings.Join(scale.Estimating(), " or "))
	case o.Placement != "policy" && o.Scaler == "none":
		return cli.Usagef("--placement %s needs --scaler: without a scaler, the policy places all instances of one GPU", o.Placement)
	case len(o.scalerSet) > 0 && o.Scaler == "none":
		return cli.Usagef("--scaler-set has no effect without --scaler")
	case o.Socket == "":
		return cli.Usagef("--socket is empty: expected a path")
	case o.Policy.Pool < residency.Unlimited:
		return cli.Usagef("--pool %d is out of range, expected 0 or more, or -1 for no limit", o.Policy.Pool)
	case o.MaxBody < 1:
		return cli.Usagef("--max-body %s: expected more than 0", gpu.Bytes(o.MaxBody))
	case o.Buffer < 1 || o.Buffer > math.MaxInt32:
		return cli.Usagef("--buffer %s: expected more than 0, and less than 2GiB", gpu.Bytes(o.Buffer))
	case o.BufferMemory < int64(gpu.MiB) || o.BufferMemory < o.Buffer:
		return cli.Usagef("--buffer-memory %s: expected 1MiB or more, and at least --buffer (%s)", gpu.Bytes(o.BufferMemory), gpu.Bytes(o.Buffer))
	case o.Spill < 0 || o.Spill > 0 && o.Spill < o.MaxBody:
		return cli.Usagef("--spill %s: expected 0, or at least --max-body (%s)", gpu.Bytes(o.Spill), gpu.Bytes(o.MaxBody))
	case o.BodyRate < 0:
		return cli.Usagef("--body-rate %s: expected 0 or more", gpu.Bytes(o.BodyRate))
	}
	for _, n := range []struct {
		name               string
		value, least, most int
	}{
		{"concurrency", o.Concurrency, 1, 1 << 16}, {"max-queue", o.Queue, 1, 1 << 20},
		{"async-concurrency", o.Async.Concurrency, 1, 1 << 12}, {"async-retries", o.Async.Retries, 0, 16},
		{"callback-retries", o.Async.CallbackRetries, 0, 16}, {"max-async", o.Async.Max, 1, 10_000_000},
	} {
		if n.value < n.least || n.value > n.most {
			return cli.Usagef("--%s %d is out of range, expected %d to %d", n.name, n.value, n.least, n.most)
		}
	}
	o.Async.Allow = nil
	for _, text := range o.callbackAllow {
		allowed, err := async.ParseAllowed(text)
		if err != nil {
			return cli.Usagef("--callback-allow %q: %w", text, err)
		}
		o.Async.Allow = append(o.Async.Allow, allowed)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"queue-timeout", o.QueueTimeout, 1}, {"timeout", o.Timeout, 1}, {"start-timeout", o.startTimeout, 1},
		{"header-timeout", o.HeaderTimeout, 1}, {"body-timeout", o.BodyTimeout, 1}, {"drain", o.Drain, 0}, {"batch-window", o.BatchWindow, 0},
	} {
		if d.value < d.least {
			expected := "more than 0"
			if d.least == 0 {
				expected = "0 or more"
			}
			return cli.Usagef("--%s %v: expected %s", d.name, d.value, expected)
		}
	}
	if err := o.checkSwarm(); err != nil {
		return err
	}
	return o.checkListen()
}

// checkListen validates --listen, --ui-listen, --allowed-host and --cors. Without --auth, it accepts only
// loopback addresses.
func (o *serveOptions) checkListen() error {
	for _, flag := range []struct{ name, address string }{{"--listen", o.Listen}, {"--ui-listen", o.UIListen}} {
		local, err := cli.CheckAddress(flag.name, flag.address)
		if err == nil && !local && o.auth == "" {
			err = cli.Fail(cli.ExitUsage, "require a password with --auth FILE, or admit every client with --auth none",
				fmt.Errorf("%s %s is not a loopback address, and there is no --auth", flag.name, flag.address))
		}
		if err != nil {
			return err
		}
	}
	for _, name := range o.Settings.AllowedHosts {
		if name == "" || strings.ContainsAny(name, "/:@*[],\" \t\r\n") {
			return cli.Usagef("--allowed-host %q: expected a host name without a port, like gateway.example.com", name)
		}
	}
	for i, text := range o.Settings.Origins {
		origin, err := gateway.ParseOrigin(text)
		if err != nil {
			return cli.Usagef("--cors %q: %w", text, err)
		}
		o.Settings.Origins[i] = origin
	}
	return nil
}

// models returns the sorted models of the GPUs without duplicates. It includes "" if a model is unknown.
func models(gpus []devices.GPU) []string {
	return lists.Distinct(gpus, func(g devices.GPU) string { return g.Model })
}

// loadProfile reads the profile. It prints a note about functions without rows for the model of a GPU. It
// fails if a GPU's model is unknown and a function has rows for several models.
func (o *serveOptions) loadProfile(t *tool, gpus []devices.GPU) (map[string][]profile.Row, error) {
	rows, err := cli.Load(t.env, o.profile, profile.Read)
	if err != nil {
		return nil, err
	}
	byFunction := map[string][]profile.Row{}
	for _, r := range rows {
		byFunction[r.Function] = append(byFunction[r.Function], r)
	}
	for _, model := range models(gpus) {
		for _, lack := range profile.Lacking(rows, model) {
			t.env.Notef("note: %s has no row of %s for the GPU model %s (only for %s): on GPUs of this model, its instances get the same slice as without a profile; to use the rows of another model, pass --%s",
				o.profile, lack.Function, csvfile.Quote(model), profile.Quoted(lack.Models), gpumodel.Flag)
		}
		if model != "" {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(byFunction)) {
			if profile.Differ(byFunction[name]) {
				return nil, gpumodel.Unknown(o.profile, profile.Models(byFunction[name]), gpumodel.ByFlag)
			}
		}
	}
	return byFunction, nil
}

// loadCosts reads the costs of functions. If the GPUs are of several models, it uses the costs on the
// slowest.
func (o *serveOptions) loadCosts(t *tool, gpus []devices.GPU) (map[string]trace.Function, error) {
	costs := map[string]trace.Function{}
	for _, model := range models(gpus) {
		list, err := cli.Load(t.env, o.costs, trace.ReadFunctionsOn(model))
		if _, several := errors.AsType[*trace.ModelsError](err); several {
			return nil, cli.Fail(cli.ExitUsage, gpumodel.ByFlag, err)
		}
		if err != nil {
			return nil, err
		}
		for _, fn := range list {
			if known, listed := costs[fn.Name]; !listed || fn.Warm > known.Warm {
				costs[fn.Name] = fn
			}
		}
	}
	return costs, nil
}

// settings reads the settings that can change while the gateway runs.
func (o *serveOptions) settings(t *tool, gpus []devices.GPU) (s gateway.Settings, err error) {
	s.AuthFunctions, s.FixedCosts = o.Settings.AuthFunctions, o.Settings.FixedCosts
	s.Open, s.AllowedHosts = o.auth == "none", slices.Clone(o.Settings.AllowedHosts)
	s.Origins = slices.Clone(o.Settings.Origins)
	if o.auth != "" && o.auth != "none" {
		if s.Auth, err = gateway.ReadCredentials(o.auth); err != nil {
			return s, o.explainSecret(o.auth, err)
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

func (o *serveOptions) run(cmd *cobra.Command, t *tool) error {
	if err := o.check(); err != nil {
		return err
	}
	t.env.CleansUp()
	t.env.Reloads()
	if err := o.setPolicy(t.env); err != nil {
		return err
	}
	if err := o.setScaler(); err != nil {
		return err
	}
	if err := o.setPlacement(); err != nil {
		return err
	}
	ctx := cmd.Context()
	gpus, err := o.openGPUs(ctx, t)
	if err != nil {
		return err
	}
	if o.fleet != nil {
		defer o.fleet.Close()
	}
	for i := range gpus {
		gpus[i].Model = cmp.Or(o.gpuModel, gpus[i].Model)
	}
	cfg := o.Config
	if cfg.Settings, err = o.settings(t, gpus); err != nil {
		return err
	}
	if cfg.Socket, err = filepath.Abs(o.Socket); err != nil {
		return err
	}
	runDir, log := filepath.Dir(cfg.Socket), t.env.Logger(t.env.Err)
	client := fnhttp.NewClient()
	defer client.Close()
	drivers := devices.NewOccupancy()
	defer drivers.Close()
	if o.fleet != nil {
		cfg.Starter, cfg.Invoker = o.fleet.Launcher, o.fleet.Invoker(client)
		cfg.WatchGPUs = o.watchGPUs(log)
		o.fleet.Report(&cfg)
		cfg.Unsupported = host.Unsupported
	} else {
		launcher, err := o.local(ctx, t, &cfg, runDir, gpus, drivers)
		if err != nil {
			return err
		}
		defer launcher.Close()
		cfg.Starter, cfg.Invoker = launcher, client
	}
	cfg.Private, cfg.Log, cfg.Version = runDir == t.runDir, log, cli.Version
	cfg.Alone = func(ctx context.Context) (func(), error) { return host.Exclusive(ctx, t.env, runDir) }
	cfg.AtWork = func() bool { return host.AtWork(runDir) }
	cfg.FailedStarts = func(function string) []gateway.FailedStart { return failedStarts(runDir, function) }
	cfg.Catalog = t.store
	started := flagValues(cmd.Flags())
	cfg.Reload = func() (gateway.Settings, error) { return o.reload(cmd, t, gpus, log, started) }
	cfg.Async.Dir = filepath.Join(filepath.Dir(cli.StatePath()), "async")
	cfg.SpillDir = filepath.Join(filepath.Dir(cli.StatePath()), "spill")
	cfg.LearnedFile = filepath.Join(filepath.Dir(cli.StatePath()), "costs.json")
	for _, g := range gpus {
		cfg.GPUs = append(cfg.GPUs, o.gatewayGPU(g))
		if o.gpuMem > 0 && o.fleet == nil {
			noteBeyond(t.env, map[string]gpu.Bytes{g.Name: o.gpuMem})
		} else if o.gpuMem == 0 && g.Mem == 0 {
			log.Warn("the memory of a GPU is unknown, so functions are placed on it without a limit: set --gpu-mem", "gpu", g.Name)
		}
	}
	var file *os.File
	switch o.record {
	case "":
	case "-":
		cfg.Record = t.env.Out
	default:
		if file, err = os.OpenFile(o.record, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
			return fmt.Errorf("--record: %w", err)
		}
		defer file.Close()
		cfg.Record = file
	}
	g, err := gateway.Open(cfg)
	if _, served := errors.AsType[*chassis.ServedError](err); served {
		return cli.Fail(cli.ExitLocked, "use the running gateway: one gateway serves all GPUs of a machine", err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitUnavailable, owndir.Hint, err)
	}
	if err != nil {
		return err
	}
	if file != nil { // only now, because another gateway could have been using the file
		if err := file.Truncate(0); err != nil {
			g.Close()
			return fmt.Errorf("--record: %w", err)
		}
	}
	if o.auth == "none" {
		log.Warn("--auth none: every client that can connect may use and manage the gateway", "listen", o.Listen)
	}
	attrs := []any{"socket", cfg.Socket, "policy", o.Policy.Policy, "gpus", len(gpus), "concurrency", o.Concurrency}
	if addr := g.WebAddr(); addr != nil {
		attrs = append(attrs, "listen", addr.String())
	}
	if addr := g.UIAddr(); addr != nil {
		attrs = append(attrs, "ui_listen", addr.String())
	}
	if o.fleet == nil {
		log.Info("serving", attrs...)
		return serveUntilSignals(ctx, g, log)
	}
	stop, err := o.keepState(ctx, t, log)
	if err != nil {
		g.Close()
		return err
	}
	defer stop()
	log.Info("serving", attrs...)
	ctx, o.supersede = context.WithCancel(ctx)
	defer o.supersede()
	return serveUntilSignals(ctx, g, log)
}

// serveUntilSignals serves until the gateway has shut down after a first signal, or until a second
// signal arrives.
func serveUntilSignals(ctx context.Context, g *gateway.Gateway, log *slog.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	result := make(chan error, 1)
	go func() { result <- g.Serve(ctx) }()
	for received := 0; received < 2; {
		select {
		case err := <-result:
			log.Info("stopped")
			return err
		case <-signals:
			received++
		}
	}
	log.Warn("stopped at once: the next gateway takes over the instances")
	return context.Canceled
}

// reloadable lists the flags that take effect on SIGHUP.
var reloadable = []string{"allowed-host", "auth", "auth-functions", "cors", "costs", "fixed-costs", "profile"}

// flagValues returns the value of each flag.
func flagValues(flags *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// reload reads the settings again. It logs a warning about settings that differ from started, their
// values at the start, and take effect only after a restart.
func (o *serveOptions) reload(cmd *cobra.Command, t *tool, gpus []devices.GPU, log *slog.Logger, started map[string]string) (gateway.Settings, error) {
	old := *o
	err := t.env.Reread(cmd.Flags())
	if err == nil {
		err = o.check()
	}
	var s gateway.Settings
	if err == nil {
		s, err = o.settings(t, gpus)
	}
	if err != nil {
		*o = old
		return s, err
	}
	log.Info("settings reloaded")
	changed := map[string]bool{}
	for name, value := range flagValues(cmd.Flags()) {
		changed[name] = value != started[name] && !slices.Contains(reloadable, name)
	}
	cli.NoteRestart(log, changed)
	return s, nil
}
