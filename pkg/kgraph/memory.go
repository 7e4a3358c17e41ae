package kgraph

import "reflect"

// Sizes of the parts of a request in memory.
var (
	moduleSize = int64(reflect.TypeFor[Module]().Size())
	bufferSize = int64(reflect.TypeFor[Buffer]().Size())
	kernelSize = int64(reflect.TypeFor[Kernel]().Size())
	imageSize  = int64(reflect.TypeFor[Image]().Size())
	entrySize  = int64(reflect.TypeFor[Entry]().Size())
	paramSize  = int64(reflect.TypeFor[Param]().Size())
	argSize    = int64(reflect.TypeFor[Arg]().Size())
)

// MemorySize estimates how many bytes of memory a request takes that Parse returned. It can be more than
// the length of the text (many small values), or less (base64).
func (r *Request) MemorySize() int64 {
	total := int64(cap(r.Modules))*moduleSize + int64(cap(r.Buffers))*bufferSize + int64(cap(r.Kernels))*kernelSize
	for i := range r.Modules {
		m := &r.Modules[i]
		total += allocated(len(m.Name)) + allocated(len(m.PTX)) + allocated(len(m.Binary)) + allocated(len(m.File)) + allocated(len(m.Stored)) + allocated(len(m.Builtin))
	}
	for i := range r.Modules {
		for _, image := range r.Modules[i].images {
			total += imageSize + image.memorySize()
		}
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

// memorySize estimates how many bytes of memory the declarations take.
func (s *Signature) memorySize() (total int64) {
	const mapEntry = 64
	for name, e := range s.Entries {
		total += allocated(len(name)) + mapEntry + entrySize + int64(cap(e.Params))*paramSize
	}
	return total
}

// allocated estimates the memory of a separate allocation of the given size.
func allocated(bytes int) int64 { return (int64(bytes) + 15) / 16 * 16 }
