package profile

import (
	"context"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/function"
)

// kernels is the kernel daemon, where graphs of kernels are measured: its executors
// do their work. nil is none.
type kernels struct {
	client  *kerneld.Client
	tenants []string // of the graphs that are measured: clients of the daemon
}

// newKernels is the daemon of a run directory, if there is a graph among the functions.
func newKernels(runDir string, functions []function.Function) *kernels {
	var tenants []string
	for _, fn := range functions {
		if fn.Kind == function.Kernels {
			tenants = append(tenants, fn.Tenant)
		}
	}
	if len(tenants) == 0 {
		return nil
	}
	return &kernels{kerneld.Dial(kerneld.Socket(runDir), ""), tenants}
}

// look returns the executors' processes, and the daemon's other clients that have
// requests there now; nothing when the daemon does not answer, as local.status.
func (k *kernels) look(ctx context.Context) (pids []int, others []string) {
	if k == nil {
		return nil, nil
	}
	const patience = time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var stats struct {
		GPUs    []struct{ PIDs []int }
		Clients []struct {
			Client           string
			Waiting, Running int
		}
	}
	if err := k.client.Stats(ctx, &stats); err != nil {
		return nil, nil
	}
	for _, g := range stats.GPUs {
		pids = append(pids, g.PIDs...)
	}
	for _, c := range stats.Clients {
		if c.Waiting+c.Running > 0 && !slices.Contains(k.tenants, c.Client) {
			others = append(others, "client "+c.Client+" of the kernel daemon")
		}
	}
	return pids, others
}
