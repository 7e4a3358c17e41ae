// Package placement chooses the GPUs of the instances that a gateway starts for an autoscaler
// (gfaas serve --placement), and of all instances that span several GPUs. A Placer has no clock and does
// no I/O. The caller reports the start and the end of every instance to it, also of instances that other
// components have placed. Kinds lists the placers.
package placement

import (
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Request describes an instance to place. Slice and Mem apply to each of its GPUs.
type Request struct {
	ID       string // unique among the instances
	Function string
	GPUs     int // 1 or more
	Slice    gpu.Slice
	Mem      gpu.Bytes // memory that it is expected to use
	Model    string    // GPU model that its configuration applies to; empty: any
}

// Placer places instances on the GPUs of one machine, which have the numbers from 0.
type Placer interface {
	// Place chooses the GPUs of an instance, in ascending order, and reserves its place there. If
	// there is no place, it returns nil and the reason, and reserves nothing. free is the free
	// memory by GPU. GPUs for which except returns true are not used.
	Place(r Request, free []gpu.Bytes, except func(gpu int) bool) ([]int, reason.Reason)
	// Put records an instance that another component has placed on these GPUs.
	Put(r Request, gpus []int)
	// Remove records the end of an instance. It ignores an unknown one.
	Remove(id string)
}

// GPU describes a GPU.
type GPU struct {
	Mem   gpu.Bytes // 0: unknown
	Model string    // empty: unknown
}

// suits reports whether an instance with a configuration for a GPU model may run on the GPU.
func (g *GPU) suits(r *Request) bool { return r.Model == "" || g.Model == "" || r.Model == g.Model }

// Unlimited is the free memory of a GPU whose memory is unknown.
const Unlimited = gpu.Bytes(1) << 62
