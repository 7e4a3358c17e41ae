package nvml

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// measured returns a library with one GPU that reports these figures one after the other.
func measured(power []uint32, util []uint32, symbols bool) *mock.Interface {
	api := testLibrary()
	looks := 0
	api.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) {
		return &mock.Device{
			GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) {
				return nvml.Utilization{Gpu: util[looks]}, nvml.SUCCESS
			},
			GetPowerUsageFunc: func() (uint32, nvml.Return) {
				looks++
				if power == nil {
					return 0, nvml.ERROR_NOT_SUPPORTED
				}
				return power[looks-1], nvml.SUCCESS
			},
			GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) {
				return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	api.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error {
			if symbols {
				return nil
			}
			return errors.New("undefined symbol")
		}}
	}
	api.GpmSampleAllocFunc = func() (nvml.GpmSample, nvml.Return) {
		return &mock.GpmSample{
			GetFunc:  func(nvml.Device) nvml.Return { return nvml.SUCCESS },
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	api.GpmMetricsGetFunc = func(m *nvml.GpmMetricsGetType) nvml.Return {
		if m.NumMetrics != 1 || m.Sample1 == nil || m.Sample2 == nil || m.Sample1 == m.Sample2 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		m.Metrics[0].Value = 37.5
		return nvml.SUCCESS
	}
	return api
}

func TestMeter(t *testing.T) {
	for _, c := range []struct {
		power, util []uint32
		symbols     bool
		want        Figures
	}{
		{[]uint32{100_000, 200_000}, []uint32{50, 100}, true, Figures{UtilPct: 75, OccupancyPct: 37.5, PowerW: 150}},
		{nil, []uint32{50}, false, Figures{UtilPct: 50}}, // an older driver, and a GPU that does not report its power
		{nil, nil, true, Figures{OccupancyPct: 37.5}},
	} {
		api := measured(c.power, c.util, c.symbols)
		m, err := NVML{API: api}.NewMeter(gpu.Device{})
		if err != nil {
			t.Fatal(err)
		}
		for range c.util {
			m.Sample()
		}
		if got := m.Close(); got != c.want {
			t.Errorf("figures: got %+v, want %+v", got, c.want)
		}
		if len(api.ShutdownCalls()) != 1 {
			t.Errorf("closed %d times, want once", len(api.ShutdownCalls()))
		}
	}
}

func TestMeterUnavailable(t *testing.T) {
	api := measured(nil, nil, true)
	for _, d := range []gpu.Device{{Simulated: true}, {MIG: "MIG-12345678-1234-1234-1234-123456789abc"}} {
		var missing *ports.UnavailableError
		if _, err := (NVML{API: api}).NewMeter(d); !errors.As(err, &missing) {
			t.Errorf("meter of %v: got the error %v, want one that is Unavailable", d, err)
		}
	}
	api.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND }
	if _, err := (NVML{API: api}).NewMeter(gpu.Device{Index: 9}); !errors.Is(err, nvml.ERROR_NOT_FOUND) {
		t.Error(err)
	}
	if opened, closed := len(api.InitCalls()), len(api.ShutdownCalls()); opened != 1 || closed != 1 {
		t.Errorf("NVML was opened %d times and closed %d times, want once each", opened, closed)
	}
}
