package gfaas

import (
	"context"
	"fmt"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	faultPause = time.Second     // between two looks at the faults of a command that runs
	faultTime  = 2 * time.Second // for the daemon's answer
)

// faultsOf returns the faults of instances by their ids, as far as the daemon answers.
func faultsOf(ctx context.Context, client *tokend.Client) map[string]wire.InstanceFault {
	ctx, cancel := context.WithTimeout(ctx, faultTime)
	defer cancel()
	faults, _ := client.Faults(ctx) // without a daemon nothing is known
	out := map[string]wire.InstanceFault{}
	for _, f := range faults {
		out[f.Instance] = f
	}
	return out
}

// faultOf returns what ps says of the fault of an instance's process that runs; empty if
// there is none.
func faultOf(faults map[string]wire.InstanceFault, r instance.Record) string {
	f, ok := faults[r.ID]
	if !ok || f.Ended || f.Time.Before(r.Handle.Started) {
		return ""
	}
	return f.String()
}

// reportFault prints, in one line, the CUDA error after which a process of an instance
// cannot use CUDA any more: within about a second, or when stop is called, which looks once
// more.
func reportFault(ctx context.Context, env *cli.Env, client *tokend.Client, id string) (stop func()) {
	ctx = context.WithoutCancel(ctx) // a command may go on after a signal
	running, cancel := context.WithCancel(ctx)
	told := false
	look := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, faultTime)
		defer cancel()
		faults, _ := client.FaultsOf(ctx, id) // without a daemon nothing is known
		for _, f := range faults {
			told = true
			fmt.Fprintf(env.Err, "%s: error: process %d cannot use CUDA any more: %v\n", env.Prog, f.PID, f)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(faultPause)
		defer tick.Stop()
		for !told {
			select {
			case <-running.Done():
				return
			case <-tick.C:
				look(running)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		if !told {
			look(ctx)
		}
	}
}
