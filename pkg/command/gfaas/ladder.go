package gfaas

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// ladder lists the mechanisms that enforce a slice, best first for each
// purpose, with the one that is used here chosen.
func (m *machine) ladder() []rung {
	hook := m.libs.Hook != ""
	onMPS := m.driver && (m.mps.Running() || m.mps.Program != "")
	shares := []rung{
		{Mechanism: "MIG instance", Found: m.partitioned(), Detail: "a MIG device is shared as any other GPU is"},
		{Mechanism: "MPS static partition", Detail: "reserves SMs; drivers from 610 on have it, this version does not use it"},
		{Mechanism: "MPS thread percentage", Found: onMPS, Detail: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE under an MPS daemon, for instances below 100%"},
		{Mechanism: "simulated driver", Found: !m.driver && m.libs.SimDir != "", Detail: "the same variable, on simulated multiprocessors"},
		{Mechanism: "time only", Found: hook, Detail: "shares are counted when tokens are handed out, and not enforced by the GPU"},
	}
	// Instances are placed by SM share: a MIG device is shared like any other.
	choose(shares[1:], "SM share")
	shares[0].Purpose = "SM share"
	times := []rung{{Mechanism: "token leases", Found: hook, Detail: "the preload library waits for its turn"}}
	choose(times, "GPU time")
	memory := []rung{
		{Mechanism: "preload library", Found: hook, Detail: "allocations over the limit fail with out of memory"},
	}
	choose(memory, "GPU memory")
	// A second fence around the first, not instead of it.
	memory = append(memory, rung{Purpose: "GPU memory", Mechanism: "MPS pinned limit", Found: onMPS,
		Detail: fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT at the limit and %v for the context", preload.MPSRoom)})
	return append(append(shares, times...), memory...)
}

// choose names the rungs' purpose and chooses the first that was found.
func choose(rungs []rung, purpose string) {
	chosen := false
	for i := range rungs {
		rungs[i].Purpose = purpose
		rungs[i].Chosen = rungs[i].Found && !chosen
		chosen = chosen || rungs[i].Found
	}
}

func (m *machine) partitioned() bool {
	for _, d := range m.devices {
		if d.MIG {
			return true
		}
	}
	return false
}
