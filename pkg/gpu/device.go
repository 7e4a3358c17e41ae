package gpu

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Device is a GPU or a MIG instance: the unit that a token daemon schedules.
type Device struct {
	Index     int    // index of a whole GPU, from 0
	Simulated bool   // a device of the simulated driver
	MIG       string // UUID of a MIG instance, including "MIG-"; empty for a whole GPU
}

// migUUID matches the UUID of a MIG instance as nvidia-smi -L prints it. It is compiled at its first
// use, because compiling it took longer than the rest of this package's initialization.
var migUUID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^MIG-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
})

// ParseDevice parses the name of a device: "0", "1", … for GPUs, "sim", "sim:1", … for simulated
// ones, "MIG-UUID" for MIG instances.
func ParseDevice(name string) (Device, error) {
	if name == "sim" {
		return Device{Simulated: true}, nil
	}
	if strings.HasPrefix(name, "MIG-") && migUUID().MatchString(name) {
		return Device{MIG: name[:4] + strings.ToLower(name[4:])}, nil
	}
	digits, simulated := strings.CutPrefix(name, "sim:")
	index, err := strconv.Atoi(digits)
	if err != nil || index < 0 {
		return Device{}, fmt.Errorf("%q is not a GPU: expected a device number, sim, sim:NUMBER or MIG-UUID", name)
	}
	return Device{Index: index, Simulated: simulated}, nil
}

// String returns the canonical name: "sim" for "sim:0", "1" for "01", and UUIDs in lower case.
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

// Visible returns the device's name for CUDA_VISIBLE_DEVICES and the container runtime.
func (d Device) Visible() string {
	if d.MIG != "" {
		return d.MIG
	}
	return strconv.Itoa(d.Index)
}

// SplitNode splits the name of a GPU of a fleet, NODE/DEVICE, into the name of its node and that of the
// device on the node. For a device without a node, node is empty.
func SplitNode(name string) (node, device string) {
	if node, device, ok := strings.Cut(name, "/"); ok {
		return node, device
	}
	return "", name
}
