package docker

import (
	"fmt"
	"strings"

	"github.com/docker/docker/api/types/mount"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// Guest is what a container that another program starts needs of this machine to run
// in a slice.
type Guest struct {
	Env     map[string]string // the secret is in it
	Mounts  []mount.Mount     // all of type bind
	GPUs    []string          // NVIDIA's, as this machine names them; empty on the simulated GPU
	HostIPC bool              // needed by MPS
}

// NewGuest returns the Guest for a slice. The grant's Socket and Libs are those of this
// machine's processes and are not used: a container has its own. The image's own
// environment is not known, so its LD_PRELOAD and LD_LIBRARY_PATH are replaced.
func NewGuest(config Config, grant preload.Grant) (Guest, error) {
	in, err := (&Runtime{config: config}).inside(grant.Instance, grant.GPU, grant.MPSPipeDir)
	if err != nil {
		return Guest{}, err
	}
	g := Guest{Mounts: in.mounts, HostIPC: in.ipc != ""}
	for _, d := range in.devices {
		g.GPUs = append(g.GPUs, d.DeviceIDs...)
	}
	for _, m := range g.Mounts {
		if strings.ContainsAny(m.Source, ": \t\n,\"'") {
			return Guest{}, fmt.Errorf("the path %q has a character that cannot be in an argument of docker run", m.Source)
		}
	}
	grant.Socket, grant.Libs, grant.GPU, grant.MPSPipeDir = preload.InsideSocket+"/token.sock", in.libs, in.gpus, in.mps
	grant.Env = in.env
	ours, err := preload.Environ(grant)
	if err != nil {
		return Guest{}, err
	}
	g.Env = map[string]string{}
	for _, from := range []map[string]string{in.env, ours} {
		for name, value := range from {
			g.Env[name] = value
		}
	}
	return g, nil
}

// Volumes returns the mounts as the flag -v takes them.
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
