package plan

import (
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Device is one GPU of an inventory. What the file does not say is empty or 0.
type Device struct {
	Node       string
	Index      int     // on its node, from 0
	MemMiB     float64 // all of it
	UUID       string
	Model      string
	SMs        int     // streaming multiprocessors
	UsedMemMiB float64 // by others: not to be planned with
	Line       int     // line in the file it came from
}

// ReadInventory reads an inventory (CSV: node, gpu, mem_mib, optionally uuid,
// model, sms, used_mem_mib); gpu is the device's number on its node. Name is
// what messages call the file.
func ReadInventory(r io.Reader, name string) ([]Device, error) {
	rows, err := csvfile.ReadWritten(r, name, deviceColumns(), func() Device { return Device{} })
	if err != nil {
		return nil, err
	}
	devices := make([]Device, len(rows))
	for i, row := range rows {
		devices[i] = row.Value
		devices[i].Line = row.Line
		if d := devices[i]; d.UsedMemMiB > d.MemMiB {
			return nil, &textfile.Fault{File: name, Line: row.Line, Where: "used_mem_mib",
				What: fmt.Sprintf("%s of %s MiB are used, expected at most all of them",
					csvfile.Format(d.UsedMemMiB), csvfile.Format(d.MemMiB))}
		}
	}
	byPlace := func(d Device) string { return fmt.Sprintf("%s gpu %d", d.Node, d.Index) }
	if err := csvfile.Unique(rows, name, "gpu", byPlace); err != nil {
		return nil, err
	}
	if err := csvfile.Unique(rows, name, "uuid", func(d Device) string { return d.UUID }); err != nil {
		return nil, err
	}
	return devices, nil
}

func deviceColumns() []csvfile.Column[Device] {
	text := func(name string, required bool, at func(*Device) *string) csvfile.Column[Device] {
		return csvfile.Column[Device]{Name: name, Required: required, Set: func(d *Device, cell string) (err error) {
			*at(d), err = csvfile.Name(cell)
			return err
		}}
	}
	whole := func(name string, required bool, least int64, at func(*Device) *int) csvfile.Column[Device] {
		return csvfile.Column[Device]{Name: name, Required: required, Set: func(d *Device, cell string) error {
			v, err := csvfile.Count(cell, least)
			*at(d) = int(v)
			return err
		}}
	}
	return []csvfile.Column[Device]{
		text("node", true, func(d *Device) *string { return &d.Node }),
		whole("gpu", true, 0, func(d *Device) *int { return &d.Index }),
		{Name: "mem_mib", Required: true, Set: func(d *Device, cell string) (err error) {
			d.MemMiB, err = csvfile.Positive(cell)
			return err
		}},
		text("uuid", false, func(d *Device) *string { return &d.UUID }),
		text("model", false, func(d *Device) *string { return &d.Model }),
		whole("sms", false, 1, func(d *Device) *int { return &d.SMs }),
		{Name: "used_mem_mib", Set: func(d *Device, cell string) (err error) {
			d.UsedMemMiB, err = csvfile.Number(cell)
			return err
		}},
	}
}
