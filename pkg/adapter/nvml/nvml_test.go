package nvml

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

var devices = []Device{
	{Index: 0, Name: "NVIDIA H200", UUID: "GPU-1234", Mem: 143771 * gpu.MiB, Driver: "570.86.15", MIG: true},
	{Index: 1, Name: "Orin (nvgpu)", UUID: "GPU-5678", Driver: "570.86.15"},
}

// testLibrary returns a library with the devices above.
func testLibrary() *mock.Interface {
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return devices[0].Driver, nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			d := devices[i]
			return &mock.Device{
				GetNameFunc: func() (string, nvml.Return) { return d.Name, nvml.SUCCESS },
				GetUUIDFunc: func() (string, nvml.Return) { return d.UUID, nvml.SUCCESS },
				GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
					if d.Mem == 0 {
						return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED
					}
					return nvml.Memory{Total: uint64(d.Mem)}, nvml.SUCCESS
				},
				GetMigModeFunc: func() (int, int, nvml.Return) {
					if !d.MIG {
						return 0, 0, nvml.ERROR_NOT_SUPPORTED
					}
					return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
				},
			}, nvml.SUCCESS
		},
	}
}

func TestDevices(t *testing.T) {
	api := testLibrary()
	got, err := NVML{API: api}.Devices(t.Context())
	if err != nil || !reflect.DeepEqual(got, devices) {
		t.Errorf("got %+v, %v; want %v", got, err, devices)
	}
	if len(api.ShutdownCalls()) != 1 {
		t.Errorf("closed %d times, want once", len(api.ShutdownCalls()))
	}
}

func TestUnavailable(t *testing.T) {
	api := testLibrary()
	api.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	libraries := []NVML{{API: api}}
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		libraries = append(libraries, NVML{}) // on a host without a driver, the real library is missing
	}
	for _, lib := range libraries {
		_, err := lib.Devices(t.Context())
		var missing *ports.UnavailableError
		if !errors.As(err, &missing) || !missing.Unavailable() || missing.Hint() == "" {
			t.Errorf("%+v: got %v, want that the library is missing", lib, err)
		}
	}
}
