package gfaas

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// The values of --utilization-source.
const (
	fromTokend = "tokend"
	fromNVML   = "nvml"
)

// followQueues lets memory follow the states of the queues (prefetch=true, swap=true) if the gateway
// parks memory, unless --set says otherwise.
func (o *serveOptions) followQueues(env *cli.Env) {
	if !o.Policy.Follows() {
		return
	}
	for key, on := range map[string]*bool{"prefetch": &o.Policy.Prefetch, "swap": &o.Policy.Swap} {
		if _, given := o.Set[key]; given {
			if *on && o.Park == "" {
				env.Notef("note: --set %s has no effect without --park", key)
			}
			continue
		}
		if *on = o.Park != ""; *on {
			o.Set[key] = "true"
		}
	}
}

// noteSideBySide prints a note if --side-by-side has no effect.
func (o *serveOptions) noteSideBySide(env *cli.Env) {
	switch {
	case !o.SideBySide:
	case queue.OneAtATime(o.Policy.Policy):
		env.Notef("note: --side-by-side: the policy %s runs one call at a time on a GPU", o.Policy.Policy)
	case o.Concurrency == 1:
		env.Notef("note: --side-by-side has no effect with --concurrency 1")
	}
}

// utilizationSource returns the function that queries the utilization of a GPU, or nil for the token
// daemon, which the gateway queries anyway. It fails if NVML does not report the utilization of a GPU.
func (o *serveOptions) utilizationSource(env *cli.Env, drivers *devices.Occupancy, gpus []devices.GPU) (func(gpu string) (float64, error), error) {
	if o.utilization != fromNVML {
		return nil, nil
	}
	if o.Policy.Utilization == 0 {
		env.Notef("note: --utilization-source %s has no effect without --set utilization=PERCENT", fromNVML)
		return nil, nil
	}
	for _, g := range gpus {
		if _, err := drivers.Busy(g.Name); err != nil {
			return nil, cli.Fail(cli.ExitUnavailable, "use --utilization-source="+fromTokend, fmt.Errorf("--utilization-source=%s: %w", fromNVML, err))
		}
	}
	return drivers.Busy, nil
}

// parking is the value of --park: how the gateway parks memory on the host. Empty means that it does not.
type parking string

func (p *parking) String() string { return string(*p) }
func (p *parking) Type() string   { return gateway.ParkSwap + "|" + gateway.ParkCheckpoint }

// Set implements pflag.Value. "true", from the flag without a value or from a setting, means swap.
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

// checkpoints returns an error if the token daemon cannot park the memory of these GPUs with the
// driver's checkpoints.
func checkpoints(ctx context.Context, daemon *tokend.Client, gpus []devices.GPU) error {
	for _, simulated := range []bool{true, false} {
		if !slices.ContainsFunc(gpus, func(g devices.GPU) bool { return strings.HasPrefix(g.Name, "sim") == simulated }) {
			continue
		}
		if err := daemon.CheckParking(ctx, simulated); err != nil {
			return cli.Fail(cli.ExitUnavailable, "use --park=swap, which does not need the driver's checkpoints", fmt.Errorf("--park=%s: %w", gateway.ParkCheckpoint, err))
		}
	}
	return nil
}

// memoryOf returns how the memory of a GPU is used. If the driver does not report the use per process,
// which NVIDIA's may not do, Free and Total are still set.
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
