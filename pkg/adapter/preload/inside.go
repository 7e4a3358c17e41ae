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

// Paths of the mounted files inside a container.
const (
	InsideFolder  = "/opt/gfaas"
	InsideHook    = "/opt/gfaas/" + HookFile
	InsideSim     = "/opt/gfaas/sim"
	InsideSocket  = "/opt/gfaas/run"       // folder of the instance's socket, token.sock
	InsideDevice  = "/opt/gfaas/device"    // files of the simulated GPU, in exported manifests
	InsideModels  = "/opt/gfaas/model"     // folder of the model daemon's socket
	InsideClient  = "/opt/gfaas/modellib/" // the model client library, with its Python module in python
	InsidePreload = "/etc/ld.so.preload"   // glibc's list of libraries to load into every program
)

// Files in the folder of an instance's socket. The token daemon removes them together with
// the socket.
const (
	PreloadFile   = "ld.so.preload" // mounted at InsidePreload
	DockerEnvFile = "docker.env"    // the environment of containers started with docker-args
	SliceFile     = "slice"         // the slice's variables, for programs that lack them in their environment
)

// libraryVariables lists the variables that the library reads from SliceFile. The loader's lists are
// not included, because the loader has read them before the library runs.
var libraryVariables = []string{
	"GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_DEVICES", "GFAAS_OVERSUBSCRIBE", "GFAAS_NO_NVML", "GFAAS_SIM_DIR", "GFAAS_SIM_GPU",
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
}

// WriteInside writes two files to the folder of an instance's socket, which keep a
// container's programs in the slice even if they have a different environment: the list for
// InsidePreload, with our library followed by the image's own entries, and the variables of
// env that the library needs.
func WriteInside(dir string, env map[string]string, image string) error {
	var slice strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if slices.Contains(libraryVariables, name) && !strings.ContainsAny(env[name], "\n\x00") {
			fmt.Fprintf(&slice, "%s=%s\n", name, env[name])
		}
	}
	err := errors.Join(
		WriteList(dir, image),
		renameio.WriteFile(filepath.Join(dir, SliceFile), []byte(slice.String()), 0o600))
	if err != nil {
		return fmt.Errorf("write the preload files of a container: %w", err)
	}
	return nil
}

// WriteList writes the list for InsidePreload to a folder: our library, followed by the image's own entries. All
// users can read it, because containers run as any user.
func WriteList(dir, image string) error {
	list := InsideHook + "\n"
	if image != "" {
		list += strings.TrimSuffix(image, "\n") + "\n"
	}
	return renameio.WriteFile(filepath.Join(dir, PreloadFile), []byte(list), 0o644, renameio.IgnoreUmask())
}
