package docker

import (
	"context"
	"fmt"
	"math"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// defaultMemory is the default memory limit of a container, as a fraction of the engine's
// memory: enough for any server, while the host survives. The default limit on processes is
// instance.DefaultPids.
const defaultMemory = 0.8

// Limits of a container's log, if the engine stores it in files.
const (
	LogFileSize = "8m"
	LogFiles    = "2"
)

// info returns the engine's description of itself, which it requests once.
func (e *engine) info(ctx context.Context) (system.Info, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.features == nil {
		info, err := e.Info(ctx)
		if err != nil {
			return info, explain("query the Docker engine", err)
		}
		e.features = &info
	}
	return *e.features, nil
}

// fence sets the container's privileges and limits. It returns a *ports.UnavailableError if the
// engine cannot enforce a limit that the function requests.
func fence(host *container.HostConfig, spec instance.Spec, engine system.Info) error {
	host.CapDrop = []string{"ALL"}
	host.SecurityOpt = []string{"no-new-privileges:true"}
	if spec.ReadOnly {
		host.ReadonlyRootfs = true
		host.Tmpfs = map[string]string{"/tmp": "rw,nosuid,nodev,mode=1777"} // counts as the container's memory
	}
	limits := spec.Limits
	for _, l := range []struct {
		limit                string
		requested, supported bool
	}{
		{"memory", limits.Memory > 0, engine.MemoryLimit},
		{"pids", limits.Pids > 0, engine.PidsLimit},
		{"cpus", limits.CPUs > 0, engine.CPUCfsQuota},
	} {
		if l.requested && !l.supported {
			return unavailable(fmt.Errorf("the Docker engine cannot limit %s: its kernel or its control groups do not support it", l.limit),
				"remove "+l.limit+" from limits: of the function, or set up control groups for Docker")
		}
	}
	limits = Bounds(limits, engine.MemTotal)
	if engine.MemoryLimit {
		host.Memory = int64(limits.Memory)
	}
	if engine.PidsLimit {
		pids := int64(limits.Pids)
		host.PidsLimit = &pids
	}
	host.NanoCPUs = int64(math.Round(limits.CPUs * 1e9))
	return nil
}

// Bounds returns the limits of a container: those of its function, and defaults for memory and
// processes. memTotal is the memory of the container's host, in bytes.
func Bounds(limits function.Limits, memTotal int64) function.Limits {
	if limits.Memory == 0 {
		limits.Memory = gpu.Bytes(defaultMemory * float64(memTotal))
	}
	if limits.Pids == 0 {
		limits.Pids = instance.DefaultPids
	}
	return limits
}

// boundLog limits the size of the log if the engine stores it in files, which by default
// grow without limit. Other logging drivers have their own settings.
func boundLog(host *container.HostConfig, engine system.Info) {
	switch engine.LoggingDriver {
	case "json-file", "local":
		host.LogConfig = container.LogConfig{
			Type:   engine.LoggingDriver,
			Config: map[string]string{"max-size": LogFileSize, "max-file": LogFiles},
		}
	}
}

// restartPolicy returns the engine's restart policy for the instance.
func restartPolicy(spec instance.Spec) container.RestartPolicyMode {
	if spec.Job != nil && spec.Job.MaxRestarts == 0 { // Docker would restart without a limit
		return container.RestartPolicyDisabled
	}
	switch spec.Restart {
	case "on-failure":
		return container.RestartPolicyOnFailure
	case "always":
		return container.RestartPolicyAlways
	}
	return container.RestartPolicyDisabled
}

// restartText describes how many times the engine has restarted a container and, during a
// restart, with which status it exited.
func restartText(count int, state *container.State) string {
	text := "restarted once"
	if count > 1 {
		text = fmt.Sprintf("restarted %d times", count)
	}
	if state.Restarting {
		text += fmt.Sprintf(", after it exited with status %d", state.ExitCode)
	}
	return text
}
