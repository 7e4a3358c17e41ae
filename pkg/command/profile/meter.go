package profile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// meters measures several GPUs; none when nothing can be asked.
type meters []*nvml.Meter

func (m *local) Meter() meter {
	var all meters
	for _, name := range m.gpus {
		d, err := gpu.ParseDevice(name)
		if err != nil || d.Simulated {
			continue
		}
		// A GPU that cannot be asked has no figures: that ends no measurement.
		if one, err := (nvml.NVML{}).NewMeter(d); err == nil {
			all = append(all, one)
		}
	}
	return all
}

func (m meters) Look() {
	for _, one := range m {
		one.Look()
	}
}

// Close returns the mean over the GPUs.
func (m meters) Close() (mean nvml.Figures) {
	for _, one := range m {
		f, n := one.Close(), float64(len(m))
		mean.UtilPct += f.UtilPct / n
		mean.OccupancyPct += f.OccupancyPct / n
		mean.PowerW += f.PowerW / n
	}
	return mean
}

// strangers are the processes on the machine's GPUs, before an instance of ours
// runs there, that the token daemon does not know. What serves them all, MPS,
// is none.
func (m *local) strangers(known []int) (names []string) {
	var library nvml.Processes
	defer library.Close()
	for _, name := range m.gpus {
		d, err := gpu.ParseDevice(name)
		if err != nil || d.Simulated {
			continue
		}
		used, err := library.Memory(d)
		if err != nil {
			continue
		}
		for pid := range used {
			process, _ := procfs.Read(pid)
			if !slices.Contains(known, pid) && !strings.HasPrefix(process.Name, "nvidia-cuda-mps") {
				names = append(names, strings.TrimSpace(fmt.Sprintf("process %d %s", pid, process.Name)))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
