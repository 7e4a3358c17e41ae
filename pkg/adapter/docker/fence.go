package docker

import (
	"context"
	"fmt"
	"math"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// defaultMemory, and instance.DefaultPids, is what a container may use unless its
// function says otherwise: enough for any server, and not so much that the host goes
// down with it.
const defaultMemory = 0.8 // of the engine's

// What is kept of a container's log where the engine keeps it in files.
const (
	logFileSize = "8m"
	logFiles    = "2"
)

// info is what the engine says of itself, asked once.
func (r *Runtime) info(ctx context.Context) (system.Info, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.about == nil {
		info, err := r.engine.Info(ctx)
		if err != nil {
			return info, explain("ask the Docker engine about itself", err)
		}
		r.about = &info
	}
	return *r.about, nil
}

// fence sets what a container is kept from.
func fence(host *container.HostConfig, spec instance.Spec, engine system.Info) error {
	host.CapDrop = []string{"ALL"}
	host.SecurityOpt = []string{"no-new-privileges:true"}
	if spec.ReadOnly {
		host.ReadonlyRootfs = true
		host.Tmpfs = map[string]string{"/tmp": "rw,nosuid,nodev,mode=1777"} // of the container's own memory
	}
	limits := spec.Limits
	for _, l := range []struct {
		what       string
		asked, can bool
	}{
		{"memory", limits.Memory > 0, engine.MemoryLimit},
		{"pids", limits.Pids > 0, engine.PidsLimit},
		{"cpus", limits.CPUs > 0, engine.CPUCfsQuota},
	} {
		if l.asked && !l.can {
			return &Error{fmt.Errorf("the Docker engine cannot limit %s: its kernel or its control groups do not let it", l.what), true,
				"take " + l.what + " out of the function's limits:, or set up control groups for Docker"}
		}
	}
	if limits.Memory == 0 {
		limits.Memory = gpu.Bytes(defaultMemory * float64(engine.MemTotal))
	}
	if limits.Pids == 0 {
		limits.Pids = instance.DefaultPids
	}
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

// boundLog bounds the log where the engine keeps it in files, which it does
// without end unless told. What others keep is theirs to bound.
func boundLog(host *container.HostConfig, engine system.Info) {
	switch engine.LoggingDriver {
	case "json-file", "local":
		host.LogConfig = container.LogConfig{
			Type:   engine.LoggingDriver,
			Config: map[string]string{"max-size": logFileSize, "max-file": logFiles},
		}
	}
}

// again is whether the engine starts a container again that has ended.
func again(spec instance.Spec) container.RestartPolicyMode {
	switch spec.Restart {
	case "on-failure":
		return container.RestartPolicyOnFailure
	case "always":
		return container.RestartPolicyAlways
	}
	return container.RestartPolicyDisabled
}

// often says of a container how often the engine has started it again and, while
// it is about to, why.
func often(count int, state *container.State) string {
	text := "started again once"
	if count > 1 {
		text = fmt.Sprintf("started again %d times", count)
	}
	if state.Restarting {
		text += fmt.Sprintf(", after it exited with status %d", state.ExitCode)
	}
	return text
}
