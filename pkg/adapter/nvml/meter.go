package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Figures describes the activity of a GPU during a measurement, including all processes on it. Values
// that the GPU does not report are 0.
type Figures struct {
	UtilPct      float64 // percentage of the time with a kernel running: the mean of the samples
	OccupancyPct float64 // active warps, as a percentage of the warps that the SMs can hold (Hopper and later)
	PowerW       float64 // the mean of the samples
}

// Meter measures one GPU from NewMeter until Close. It is not safe for
// concurrent use.
type Meter struct {
	api    nvml.Interface
	device nvml.Device
	first  nvml.GpmSample // at the start of the measurement; nil if the GPU has no GPM counters
	util   average
	power  average
}

type average struct {
	sum float64
	n   int
}

func (a *average) add(v float64) { a.sum, a.n = a.sum+v, a.n+1 }

func (a *average) mean() float64 {
	if a.n == 0 {
		return 0
	}
	return a.sum / float64(a.n)
}

// NewMeter starts a measurement of a GPU. It fails if the GPU is simulated and n is not, or vice versa, and
// for a MIG instance, which has no figures of its own.
func (n NVML) NewMeter(d gpu.Device) (*Meter, error) {
	if d.Simulated != (n.Simulated != "") || d.MIG != "" {
		return nil, unavailable(nvml.ERROR_NOT_SUPPORTED)
	}
	api, err := open(n.API, n.Simulated)
	if err != nil {
		return nil, err
	}
	device, ret := api.DeviceGetHandleByIndex(d.Index)
	if ret != nvml.SUCCESS {
		api.Shutdown()
		return nil, ret
	}
	m := &Meter{api: api, device: device}
	m.first = m.sample()
	return m, nil
}

// sample reads the counters of the GPU performance metrics (GPM), or returns nil if the GPU has none. It
// first checks that the library has the functions, because calling a missing function would end the
// process.
func (m *Meter) sample() nvml.GpmSample {
	if m.api.Extensions().LookupSymbol("nvmlGpmMetricsGet") != nil {
		return nil
	}
	if support, ret := m.device.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return nil
	}
	s, ret := m.api.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil
	}
	if s.Get(m.device) != nvml.SUCCESS {
		s.Free()
		return nil
	}
	return s
}

// Sample adds a sample of the utilisation and the power to the measurement.
func (m *Meter) Sample() {
	if util, ret := m.device.GetUtilizationRates(); ret == nvml.SUCCESS {
		m.util.add(float64(util.Gpu))
	}
	if milliwatts, ret := m.device.GetPowerUsage(); ret == nvml.SUCCESS {
		m.power.add(float64(milliwatts) / 1000)
	}
}

// Close ends the measurement and returns its figures.
func (m *Meter) Close() Figures {
	defer m.api.Shutdown()
	f := Figures{UtilPct: m.util.mean(), PowerW: m.power.mean()}
	if m.first == nil {
		return f
	}
	defer m.first.Free()
	last := m.sample()
	if last == nil {
		return f
	}
	defer last.Free()
	metrics := nvml.GpmMetricsGetType{NumMetrics: 1, Sample1: m.first, Sample2: last}
	metrics.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_SM_OCCUPANCY)
	if m.api.GpmMetricsGet(&metrics) == nvml.SUCCESS && metrics.Metrics[0].NvmlReturn == uint32(nvml.SUCCESS) {
		f.OccupancyPct = metrics.Metrics[0].Value
	}
	return f
}
