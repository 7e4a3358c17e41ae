package profile

import (
	"context"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/lists"
)

// kernelTimeout limits how long the kernel daemon may take to answer.
const kernelTimeout = time.Second

// kernelUsers returns a function that queries the kernel daemon of a run directory, or nil if no function
// is a graph of kernels. The query returns the processes of the executors, and the names of clients other
// than the functions that have requests there. It returns nothing if the daemon does not answer.
func kernelUsers(runDir string, functions []function.Function) func(ctx context.Context) (executors []int, otherClients []string) {
	graphs := lists.Filter(functions, func(fn function.Function) bool { return fn.Kind == function.Kernels })
	tenants := lists.Map(graphs, func(fn function.Function) string { return fn.Tenant })
	if len(tenants) == 0 {
		return nil
	}
	client := kerneld.Dial(kerneld.Socket(runDir), "")
	return func(ctx context.Context) (executors []int, otherClients []string) {
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
				otherClients = append(otherClients, "client "+c.Client+" of the kernel daemon")
			}
		}
		return executors, otherClients
	}
}
