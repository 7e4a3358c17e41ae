package kgraph

import "reflect"

// size returns how many bytes n values of a type take.
func size[T any](n int) int64 { return int64(n) * int64(reflect.TypeFor[T]().Size()) }

// MemorySize estimates how many bytes of memory a request takes that Parse returned. It can be more than
// the length of the text (many small values), or less (base64).
func (r *Request) MemorySize() int64 {
	total := size[Module](cap(r.Modules)) + size[Buffer](cap(r.Buffers)) + size[Kernel](cap(r.Kernels))
	for i := range r.Modules {
		m := &r.Modules[i]
		total += allocated(len(m.Name)) + allocated(len(m.PTX)) + allocated(len(m.Binary)) + allocated(len(m.File)) + allocated(len(m.Stored)) + allocated(len(m.Builtin))
		for _, image := range m.images {
			total += size[Image](1) + image.memorySize()
		}
	}
	for i := range r.Buffers {
		b := &r.Buffers[i]
		total += allocated(len(b.Name)) + allocated(len(b.Key)) + allocated(cap(b.Data))
	}
	for i := range r.Kernels {
		k := &r.Kernels[i]
		total += allocated(len(k.Name)) + size[Arg](cap(k.Args))
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
		total += allocated(len(name)) + mapEntry + size[Entry](1) + size[Param](cap(e.Params))
	}
	return total
}

// allocated estimates the memory of a separate allocation of the given size.
func allocated(bytes int) int64 { return (int64(bytes) + 15) / 16 * 16 }
