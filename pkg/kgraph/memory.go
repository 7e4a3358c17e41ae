package kgraph

import "reflect"

// What the parts of a request take themselves.
var (
	moduleSize = int64(reflect.TypeFor[Module]().Size())
	bufferSize = int64(reflect.TypeFor[Buffer]().Size())
	kernelSize = int64(reflect.TypeFor[Kernel]().Size())
	argSize    = int64(reflect.TypeFor[Arg]().Size())
)

// Held is about how many bytes of memory a request takes that Parse has read: more
// than its text where that is many small values, less where it is base64.
func (r *Request) Held() int64 {
	total := int64(cap(r.Modules))*moduleSize + int64(cap(r.Buffers))*bufferSize + int64(cap(r.Kernels))*kernelSize
	for i := range r.Modules {
		m := &r.Modules[i]
		total += allocated(len(m.Name)) + allocated(len(m.PTX)) + allocated(len(m.File)) + allocated(len(m.Builtin))
	}
	for i := range r.Buffers {
		b := &r.Buffers[i]
		total += allocated(len(b.Name)) + allocated(len(b.Key)) + allocated(cap(b.Data))
	}
	for i := range r.Kernels {
		k := &r.Kernels[i]
		total += allocated(len(k.Name)) + int64(cap(k.Args))*argSize
		for j := range k.Args {
			total += allocated(len(k.Args[j].Type)) + allocated(cap(k.Args[j].Value))
		}
	}
	return total
}

// allocated is about what so many bytes of their own take.
func allocated(bytes int) int64 { return (int64(bytes) + 15) / 16 * 16 }
