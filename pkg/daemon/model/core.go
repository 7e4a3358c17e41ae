package model

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// core holds the configuration, the log and the lock that all types of the daemon share: library
// embeds core, loader embeds library, and so on up to Daemon. The lock guards their state
// throughout.
type core struct {
	cfg  Config
	log  *slog.Logger
	ctx  context.Context // ends with the daemon
	stop context.CancelFunc
	work sync.WaitGroup // goroutines of loads, connections and watched processes

	mu     sync.Mutex
	closed bool
}

// Catalogue stores the daemon's records of models across restarts.
type Catalogue interface {
	Models(ctx context.Context) ([]wire.Record, error)
	PutModel(ctx context.Context, r wire.Record) error
	DeleteModel(ctx context.Context, tenant, name string) error
}

// Config is the configuration of a daemon.
type Config struct {
	Socket     string               // model.sock; its folder is the run directory
	Tenants    []string             // tenants with a socket, in addition to the default tenant
	Bounds     map[string]gpu.Bytes // explicit bounds on tenants' models; see Shares
	Capacity   gpu.Bytes            // limit on all copies together
	Staging    gpu.Bytes            // limit on pinned host memory; 0: 64 MiB
	Models     string               // folder of models that are available without a put; empty: none
	Stall      time.Duration        // longest time to read a piece of a file; 0: 2 min
	SendTime   time.Duration        // longest time for a client to receive a message or a piece; 0: 10 s
	StorePause time.Duration        // longest pause during an uncommitted store; 0: 60 s
	Listen     string               // TCP address of /healthz, /readyz and /metrics; empty: none
	Private    bool                 // the run directory belongs to this daemon only; its mode becomes 0700

	ExitWhenIdle time.Duration // exit after this time without a client or a holder of a model; 0: never

	// Reload reads new settings on SIGHUP. If nil, SIGHUP has no effect.
	Reload func() (Settings, error)

	// Slices counts uncommitted stores against the slices of their clients. If nil, stores
	// count against no slice. GPUName is the GPU's name in those slices.
	Slices  Slices
	GPUName string

	GPU       device.Device
	Catalogue Catalogue
	Log       *slog.Logger
}

// Settings are the part of the configuration that may change while the daemon runs.
type Settings struct {
	Capacity gpu.Bytes
	Tenants  []string // tenants to add; existing sockets stay
	Bounds   map[string]gpu.Bytes
}

// Shares returns the bound on each tenant's models: its entry in sizes or, for tenants without
// an entry, an equal part of the remaining capacity. Example: of 10 GiB for tenants a, b and c,
// with 4 GiB for a, b and c get 3 GiB each. The default tenant is the daemon's own user and has
// no bound unless it is listed. The error reports sizes that exceed the capacity, or that leave
// no room for a tenant; the bounds are returned nevertheless.
func Shares(capacity gpu.Bytes, tenants []string, sizes map[string]gpu.Bytes) (map[string]gpu.Bytes, error) {
	shares, remaining, equal := map[string]gpu.Bytes{}, capacity, []string(nil)
	for _, tenant := range slices.Compact(slices.Sorted(slices.Values(tenants))) {
		if size, named := sizes[tenant]; named {
			shares[tenant] = size
			remaining -= size
		} else {
			equal = append(equal, tenant)
		}
	}
	for _, tenant := range equal {
		shares[tenant] = max(remaining, 0) / gpu.Bytes(len(equal))
	}
	switch {
	case remaining < 0:
		return shares, fmt.Errorf("the tenants' sizes sum to %v, more than the capacity of %v", capacity-remaining, capacity)
	case remaining == 0 && len(equal) > 0:
		return shares, fmt.Errorf("the tenants' sizes use the whole capacity of %v, so nothing remains for tenant %s", capacity, equal[0])
	}
	return shares, nil
}

// roundUp rounds a size up to the granularity of allocations on the GPU.
func (c *core) roundUp(size gpu.Bytes) gpu.Bytes {
	unit := c.cfg.GPU.Granularity()
	return (size + unit - 1) / unit * unit
}

// codeOf converts an error to the form in which clients receive it.
func codeOf(err error) *wire.Error {
	var coded *wire.Error
	var refused *policy.Refusal
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &refused):
		return wire.Errorf(refused.Code, "%s", refused.Message)
	case errors.Is(err, context.Canceled):
		return wire.Errorf(wire.CodeInternal, "the daemon is shutting down")
	}
	return wire.Errorf(wire.CodeInternal, "%v", err)
}
