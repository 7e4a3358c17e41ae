package profile

import (
	"context"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/function"
)

// kernelTimeout is the longest wait for an answer of the kernel daemon.
const kernelTimeout = time.Second

// kernelUsers returns a function that queries the kernel daemon of a run directory: it
// returns the processes of the executors, and the names of clients other than the
// functions that have requests there; nothing if the daemon does not answer. kernelUsers
// returns nil if no function is a graph of kernels.
func kernelUsers(runDir string, functions []function.Function) func(ctx context.Context) (executors []int, others []string) {
	var tenants []string
	for _, fn := range functions {
		if fn.Kind == function.Kernels {
			tenants = append(tenants, fn.Tenant)
		}
	}
	if len(tenants) == 0 {
		return nil
	}
	client := kerneld.Dial(kerneld.Socket(runDir), "")
	return func(ctx context.Context) (executors []int, others []string) {
		ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
		defer cancel()
		var stats struct {
			GPUs    []struct{ PIDs []int }
			Clients []struct {
				Client           string
				Waiting, Running int
			}
		}
		if err := client.Stats(ctx, &stats); err != nil {
			return nil, nil
		}
		for _, g := range stats.GPUs {
			executors = append(executors, g.PIDs...)
		}
		for _, c := range stats.Clients {
			if c.Waiting+c.Running > 0 && !slices.Contains(tenants, c.Client) {
				others = append(others, "client "+c.Client+" of the kernel daemon")
			}
		}
		return executors, others
	}
}
