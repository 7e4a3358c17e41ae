package preload

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// Where a container has our files.
const (
	InsideHook    = "/opt/gfaas/" + HookFile
	InsideSim     = "/opt/gfaas/sim"
	InsideSocket  = "/opt/gfaas/run"       // the folder of the instance's socket, token.sock
	InsideDevice  = "/opt/gfaas/device"    // the files of the simulated GPU, where an exported manifest mounts them
	InsideModels  = "/opt/gfaas/model"     // the folder of the model daemon's socket
	InsideClient  = "/opt/gfaas/modellib/" // the model client library, and in python its module
	InsidePreload = "/etc/ld.so.preload"   // the list of libraries that glibc loads into every program
)

// Files in the folder of an instance's socket. The token daemon removes them with it.
const (
	PreloadFile   = "ld.so.preload" // mounted at InsidePreload
	DockerEnvFile = "docker.env"    // the environment that docker-args gives containers
	SliceFile     = "slice"         // the variables of the slice, for programs whose environment lacks them
)

// kept are the variables that the library takes from SliceFile. Lists of the loader's
// are none: it has read them by then.
var kept = []string{
	"GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_DEVICES", "GFAAS_OVERSUBSCRIBE", "GFAAS_NO_NVML", "GFAAS_SIM_DIR", "GFAAS_SIM_GPU",
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
}

// WriteInside writes into the folder of an instance's socket what keeps the programs of
// its container in the slice when they are started with an environment of their own: the
// list at InsidePreload, of the library and then those that the image itself lists, and
// the variables of env that the library needs.
func WriteInside(dir string, env map[string]string, image string) error {
	list := InsideHook + "\n"
	if image != "" {
		list += strings.TrimSuffix(image, "\n") + "\n"
	}
	var slice strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if slices.Contains(kept, name) && !strings.ContainsAny(env[name], "\n\x00") {
			fmt.Fprintf(&slice, "%s=%s\n", name, env[name])
		}
	}
	err := errors.Join(
		renameio.WriteFile(filepath.Join(dir, PreloadFile), []byte(list), 0o644),
		renameio.WriteFile(filepath.Join(dir, SliceFile), []byte(slice.String()), 0o600))
	if err != nil {
		return fmt.Errorf("write what a container preloads: %w", err)
	}
	return nil
}
