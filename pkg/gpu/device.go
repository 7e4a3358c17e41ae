package gpu

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Device is a GPU, or a MIG instance of one: what a token daemon schedules.
type Device struct {
	Index     int    // of a whole GPU, counted from 0
	Simulated bool   // one of the simulated driver's
	MIG       string // UUID of a MIG instance, with its "MIG-"; empty for a whole GPU
}

// migUUID is how nvidia-smi -L prints the UUID of a MIG instance.
var migUUID = regexp.MustCompile(`^MIG-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// ParseDevice reads the name of a device: "0", "1", … for GPUs by number,
// "sim", "sim:1", … for simulated ones, "MIG-UUID" for MIG instances.
func ParseDevice(name string) (Device, error) {
	if name == "sim" {
		return Device{Simulated: true}, nil
	}
	if migUUID.MatchString(name) {
		return Device{MIG: name[:4] + strings.ToLower(name[4:])}, nil
	}
	digits, simulated := strings.CutPrefix(name, "sim:")
	index, err := strconv.Atoi(digits)
	if err != nil || index < 0 {
		return Device{}, fmt.Errorf("%q is not a GPU: expected a device number, sim, sim:NUMBER or MIG-UUID", name)
	}
	return Device{Index: index, Simulated: simulated}, nil
}

// String is the device's one name: "sim" for "sim:0", "1" for "01", and a UUID
// in small letters.
func (d Device) String() string {
	switch {
	case d.MIG != "":
		return d.MIG
	case d.Simulated && d.Index == 0:
		return "sim"
	case d.Simulated:
		return "sim:" + strconv.Itoa(d.Index)
	}
	return strconv.Itoa(d.Index)
}

// Visible is what CUDA_VISIBLE_DEVICES and the container runtime call it.
func (d Device) Visible() string {
	if d.MIG != "" {
		return d.MIG
	}
	return strconv.Itoa(d.Index)
}
