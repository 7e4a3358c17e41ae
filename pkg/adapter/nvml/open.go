package nvml

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is the file name of the management library, both of the real and of the simulated one.
const Library = "libnvidia-ml.so.1"

// opened records the library that this process uses: the first one opened. go-nvml binds its functions to
// it for the lifetime of the process.
var opened struct {
	sync.Mutex
	path   string
	loaded bool
}

// open opens and initialises a library: api if it is not nil, otherwise the simulated one at the given
// path, otherwise the driver's.
func open(api nvml.Interface, simulated string) (nvml.Interface, error) {
	if api != nil {
		if ret := api.Init(); ret != nvml.SUCCESS {
			return nil, unavailable(ret)
		}
		return api, nil
	}
	opened.Lock()
	defer opened.Unlock()
	if opened.loaded && opened.path != simulated {
		return nil, unavailable(errors.New("this process has already loaded the other library, real or simulated"))
	}
	var options []nvml.LibraryOption
	if simulated != "" {
		options = append(options, nvml.WithLibraryPath(simulated))
		_ = os.Setenv("GFAAS_SIM_NOTED", "1") // gfaas prints its own note about the simulated GPU
	}
	api = nvml.New(options...)
	if ret := api.Init(); ret != nvml.SUCCESS {
		return nil, unavailable(ret)
	}
	opened.path, opened.loaded = simulated, true
	// In a slice of the simulated GPU, the loader finds the simulated library first.
	if version, ret := api.SystemGetDriverVersion(); simulated == "" && ret == nvml.SUCCESS && strings.HasSuffix(version, "-simulated") {
		api.Shutdown()
		return nil, unavailable(errors.New("the loader finds the simulated " + Library + " of gfaas"))
	}
	return api, nil
}
