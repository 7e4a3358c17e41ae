package docker

import "context"

// PID exports Runtime.PID.
var PID = (*Runtime).PID

// Fence exports fence.
var Fence = fence

// Network exports engine.network.
func Network(r *Runtime, ctx context.Context) (string, error) {
	return r.engine.network(ctx, r.config.Network)
}
