package nvml

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is the file name of the management library, the real one and the
// simulated one.
const Library = "libnvidia-ml.so.1"

// opened is the library that this process calls: the first that was opened. The
// functions of go-nvml are bound to it for good.
var opened struct {
	sync.Mutex
	path string
	any  bool
}

// open finds and initialises a library: api where it is given, else the simulated
// one at that path, else the driver's.
func open(api nvml.Interface, simulated string) (nvml.Interface, error) {
	if api != nil {
		if ret := api.Init(); ret != nvml.SUCCESS {
			return nil, &UnavailableError{ret}
		}
		return api, nil
	}
	opened.Lock()
	defer opened.Unlock()
	if opened.any && opened.path != simulated {
		return nil, &UnavailableError{errors.New("this process has the other one open, real or simulated")}
	}
	var options []nvml.LibraryOption
	if simulated != "" {
		options = append(options, nvml.WithLibraryPath(simulated))
		_ = os.Setenv("GFAAS_SIM_NOTED", "1") // gfaas says itself that it is simulated
	}
	api = nvml.New(options...)
	if ret := api.Init(); ret != nvml.SUCCESS {
		return nil, &UnavailableError{ret}
	}
	opened.path, opened.any = simulated, true
	// Inside a slice of the simulated GPU its library is found first.
	if version, ret := api.SystemGetDriverVersion(); simulated == "" && ret == nvml.SUCCESS && strings.HasSuffix(version, "-simulated") {
		api.Shutdown()
		return nil, &UnavailableError{errors.New("the " + Library + " that is found is gfaas's simulated one")}
	}
	return api, nil
}
