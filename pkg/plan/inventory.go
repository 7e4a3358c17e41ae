package plan

import (
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Device is one GPU of an inventory. Values that the file does not have are empty or 0.
type Device struct {
	Node       string
	Index      int     // on its node, from 0
	MemMiB     float64 // total memory
	UUID       string
	Model      string
	SMs        int     // streaming multiprocessors
	UsedMemMiB float64 // memory in use by other programs, which a plan must leave to them
	Line       int     // line in the file it came from
}

// GPUName identifies a GPU of a fleet: its node and its index there.
type GPUName struct {
	Node  string
	Index int
}

func (n GPUName) String() string { return fmt.Sprintf("%s/%d", n.Node, n.Index) }

// Name returns the name of the device.
func (d Device) Name() GPUName { return GPUName{d.Node, d.Index} }

// Name returns the name of the GPU.
func (g GPU) Name() GPUName { return GPUName{g.Node, g.Index} }

// ReadInventory reads an inventory (CSV: node, gpu, mem_mib, optionally uuid, model, sms, used_mem_mib);
// gpu is the device's index on its node. name is the file's name in error messages.
func ReadInventory(r io.Reader, name string) ([]Device, error) {
	devices, err := csvfile.ReadWritten(r, name, []csvfile.Column[Device]{
		csvfile.Required("node", csvfile.Name, func(d *Device) *string { return &d.Node }),
		csvfile.Required("gpu", csvfile.AtLeast(0), func(d *Device) *int { return &d.Index }),
		csvfile.Required("mem_mib", csvfile.Positive, func(d *Device) *float64 { return &d.MemMiB }),
		csvfile.Field("uuid", csvfile.Name, func(d *Device) *string { return &d.UUID }),
		csvfile.Field("model", csvfile.Name, func(d *Device) *string { return &d.Model }),
		csvfile.Field("sms", csvfile.AtLeast(1), func(d *Device) *int { return &d.SMs }),
		csvfile.Field("used_mem_mib", csvfile.Number, func(d *Device) *float64 { return &d.UsedMemMiB }),
	}, func(line int) Device { return Device{Line: line} })
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if d.UsedMemMiB > d.MemMiB {
			return nil, &textfile.Fault{File: name, Line: d.Line, Where: "used_mem_mib",
				What: fmt.Sprintf("%s MiB are used, expected at most mem_mib, which is %s",
					csvfile.Format(d.UsedMemMiB), csvfile.Format(d.MemMiB))}
		}
	}
	byPlace := func(d Device) (string, int) { return fmt.Sprintf("%s gpu %d", d.Node, d.Index), d.Line }
	if err := csvfile.Unique(devices, name, "gpu", byPlace); err != nil {
		return nil, err
	}
	return devices, csvfile.Unique(devices, name, "uuid", func(d Device) (string, int) { return d.UUID, d.Line })
}
