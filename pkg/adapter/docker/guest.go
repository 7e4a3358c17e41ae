package docker

import (
	"fmt"
	"maps"
	"strings"

	"github.com/docker/docker/api/types/mount"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// Guest describes the environment, mounts and devices that a container started by another
// program needs to run in a slice.
type Guest struct {
	Env     map[string]string // contains the secret
	Mounts  []mount.Mount     // all of type bind
	GPUs    []string          // NVIDIA GPUs, by this machine's names; empty on the simulated GPU
	HostIPC bool              // required by MPS
}

// NewGuest returns the Guest for a slice. It ignores the grant's Socket and Libs, which are
// paths outside the container. The image's environment is unknown, so the Guest replaces
// its LD_PRELOAD and LD_LIBRARY_PATH.
func NewGuest(config Config, grant preload.Grant) (Guest, error) {
	in, err := (&Runtime{config: config}).resources(grant.Instance, grant.GPU, grant.MPSPipeDir)
	if err != nil {
		return Guest{}, err
	}
	g := Guest{Mounts: in.mounts, HostIPC: in.ipc != ""}
	for _, d := range in.devices {
		g.GPUs = append(g.GPUs, d.DeviceIDs...)
	}
	for _, m := range g.Mounts {
		if strings.ContainsAny(m.Source, ": \t\n,\"'") {
			return Guest{}, fmt.Errorf("cannot mount %q: its path contains a character that an argument of docker run cannot contain", m.Source)
		}
	}
	grant.Socket, grant.Libs, grant.GPU, grant.MPSPipeDir = in.Socket, in.Libs, in.GPUs, in.MPS
	maps.Copy(in.Env, in.Fixed)
	grant.Env = in.Env
	ours, err := preload.Environ(grant)
	if err != nil {
		return Guest{}, err
	}
	g.Env = in.Env
	maps.Copy(g.Env, ours)
	return g, nil
}

// Volumes returns the mounts as arguments of the flag -v.
func (g Guest) Volumes() (out []string) {
	for _, m := range g.Mounts {
		v := m.Source + ":" + m.Target
		if m.ReadOnly {
			v += ":ro"
		}
		out = append(out, v)
	}
	return out
}
