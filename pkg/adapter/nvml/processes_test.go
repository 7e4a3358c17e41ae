package nvml

import (
	"errors"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

func TestProcesses(t *testing.T) {
	mig := gpu.Device{MIG: "MIG-12345678-1234-1234-1234-123456789abc"}
	busy := &mock.Device{
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 500 << 20}, {Pid: 8, UsedGpuMemory: math.MaxUint64}}, nvml.SUCCESS
		},
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 400 << 20}, {Pid: 9, UsedGpuMemory: 1 << 20}}, nvml.SUCCESS
		},
	}
	broken := &mock.Device{
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST },
	}
	api := testLibrary()
	api.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		return []nvml.Device{busy, broken}[i], nvml.SUCCESS
	}
	api.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		if uuid != mig.MIG {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return busy, nvml.SUCCESS
	}
	p := Processes{API: api}
	want := map[int]gpu.Bytes{7: 500 << 20, 9: 1 << 20}
	for _, d := range []gpu.Device{{Index: 0}, mig} {
		if got, err := p.Memory(d); err != nil || !maps.Equal(got, want) {
			t.Errorf("memory of the processes on %v: got %v, %v; want %v", d, got, err, want)
		}
	}
	if _, err := p.Memory(gpu.Device{Index: 1}); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("lost GPU: got the error %v, want %v", err, nvml.ERROR_GPU_IS_LOST)
	}
	busy.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		return nvml.Memory{Total: 80 << 30, Free: 70 << 30, Used: 10 << 30}, nvml.SUCCESS
	}
	busy.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{Gpu: 25}, nvml.SUCCESS
	}
	broken.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_GPU_IS_LOST }
	if got, err := p.Busy(gpu.Device{Index: 0}); got != 0.25 || err != nil {
		t.Errorf("utilization: got %v, %v; want 0.25", got, err)
	}
	if _, err := p.Busy(gpu.Device{Index: 1}); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("utilization of a lost GPU: got the error %v, want %v", err, nvml.ERROR_GPU_IS_LOST)
	}
	broken.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	for _, d := range []gpu.Device{{Index: 0}, mig} {
		if free, total, err := p.Free(d); free != 70<<30 || total != 80<<30 || err != nil {
			t.Errorf("memory of %v: got %v of %v free, %v; want 70 GiB of 80 GiB", d, free, total, err)
		}
	}
	if _, _, err := p.Free(gpu.Device{Index: 1}); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("lost GPU: got the error %v, want %v", err, nvml.ERROR_GPU_IS_LOST)
	}
	broken.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	if _, _, err := p.Free(gpu.Device{Index: 1}); !errors.Is(err, nvml.ERROR_NOT_SUPPORTED) || !strings.Contains(err.Error(), "unknown") || !strings.Contains(err.Error(), "--gpu-mem") {
		t.Errorf("GPU that does not report its memory: got the error %v, want one that names --gpu-mem", err)
	}
	if n := len(api.InitCalls()); n != 1 {
		t.Errorf("opened %d times, want once", n)
	}
	p.Close()
	p.Close()
	if n := len(api.ShutdownCalls()); n != 1 {
		t.Errorf("closed %d times, want once", n)
	}
	api.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	var missing *ports.UnavailableError
	if _, err := p.Memory(mig); !errors.As(err, &missing) {
		t.Errorf("processes without a library: got the error %v, want one that is Unavailable", err)
	}
}
