package process

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
)

// private is what a process does not inherit: it names its starter or is
// meant for the starter only.
var private = []string{
	"GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_SOCKET",
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
}

// environ is the whole environment of an instance.
func (r *Runtime) environ(spec instance.Spec, port int) ([]string, error) {
	env := map[string]string{}
	for _, entry := range os.Environ() {
		if name, value, ok := strings.Cut(entry, "="); ok && !slices.Contains(private, name) {
			env[name] = value
		}
	}
	maps.Copy(env, spec.Env)
	if spec.Dir != "" {
		env["PWD"] = spec.Dir
	}
	env["PORT"] = strconv.Itoa(port)
	ours, err := preload.Environ(preload.Grant{
		Socket: r.socket(), Instance: spec.ID, Secret: spec.Secret,
		GPU: spec.GPUs, SMPct: spec.Slice.SMPct, Libs: r.config.Libs, Env: env,
		MPSPipeDir: spec.MPSPipeDir, Mem: spec.Slice.Mem, Oversubscribe: spec.Oversubscribe,
	})
	if err != nil {
		return nil, err
	}
	maps.Copy(env, ours)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

// socket is where instances of this run directory find the token daemon.
func (r *Runtime) socket() string {
	return filepath.Join(tokend.ClientSocketDir(r.config.RunDir), "token.sock")
}
