package gfaas

import (
	"fmt"
	"strconv"
	"strings"
)

// checkpointDriver is the first driver that can move a process's GPU memory to the
// host: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html
const checkpointDriver = 570

// parking is what can become of the GPU memory of instances that have no work, best
// first.
func (m *machine) parking() []rung {
	hook := m.libs.Hook != ""
	detail, ok := m.checkpoints()
	rungs := []rung{
		{Purpose: "idle memory", Mechanism: "driver checkpoint", Found: ok, Detail: detail},
		{Mechanism: "swap by the preload library", Found: hook,
			Detail: "with gfaas serve --park or gfaas run --oversubscribe, where gpu_mem bounds the memory: it waits on the host"},
		{Mechanism: "stop and start", Found: hook, Detail: "an idle instance ends, and another starts with the next call"},
	}
	choose(rungs[1:], "idle memory")
	return rungs
}

// checkpoints says whether the driver's checkpoints are there, and what is missing.
func (m *machine) checkpoints() (detail string, ok bool) {
	const how = "with gfaas serve --park=checkpoint all of a process's memory is moved to the host, addresses kept"
	if !m.ptrace {
		return "it needs the capability CAP_SYS_PTRACE, which you do not have here", false
	}
	if !m.driver {
		return how, m.libs.SimDir != ""
	}
	if len(m.devices) == 0 {
		return "the driver's version is not known", false
	}
	version := m.devices[0].Driver
	text, _, _ := strings.Cut(version, ".")
	if major, err := strconv.Atoi(text); err != nil || major < checkpointDriver {
		return fmt.Sprintf("drivers from %d on have it, this is %s", checkpointDriver, version), false
	}
	for _, d := range m.devices {
		if d.MIG {
			return "not where a GPU is partitioned by MIG", false
		}
	}
	return how + "; drivers have lost processes in it, so it is not chosen by itself", true
}
