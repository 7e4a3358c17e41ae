package kernel

import (
	"cmp"
	"fmt"
	"slices"
)

// domain is host memory shared by a group of executors: all of them, or those of one client.
type domain struct {
	host Host
	free extents
}

// region is a range of a domain's memory.
type region struct {
	dom          *domain
	offset, size int64
}

func (r *region) bytes() []byte { return r.dom.host.Bytes()[r.offset : r.offset+r.size] }

// alloc allocates a region. Its contents are undefined.
func (dom *domain) alloc(size int64) (*region, error) {
	offset, ok := dom.free.alloc(size)
	if !ok {
		return nil, fmt.Errorf("no free range of %d bytes", size)
	}
	return &region{dom, offset, size}, nil
}

// free frees a region. It returns the memory of large regions to the operating system.
func (r *region) free() {
	const large = 1 << 20
	if r.size >= large {
		r.dom.host.Discard(r.offset, r.size)
	}
	r.dom.free.release(r.offset, r.size)
}

// extents is a free list: sorted, and without adjacent ranges.
type extents []extent

type extent struct{ offset, size int64 }

// granule is the unit of allocation in bytes.
const granule = 64

func rounded(size int64) int64 { return (size + granule - 1) / granule * granule }

// alloc allocates from the first range that is large enough.
func (e *extents) alloc(size int64) (offset int64, ok bool) {
	size = rounded(size)
	for i := range *e {
		x := &(*e)[i]
		if x.size < size {
			continue
		}
		offset = x.offset
		x.offset += size
		if x.size -= size; x.size == 0 {
			*e = slices.Delete(*e, i, i+1)
		}
		return offset, true
	}
	return 0, false
}

// release frees a range and merges it with adjacent free ranges.
func (e *extents) release(offset, size int64) {
	size = rounded(size)
	i, _ := slices.BinarySearchFunc(*e, offset, func(x extent, at int64) int { return cmp.Compare(x.offset, at) })
	*e = slices.Insert(*e, i, extent{offset, size})
	e.merge(i)
	e.merge(i - 1)
}

// merge merges the ith range with the next one if both exist and are adjacent.
func (e *extents) merge(i int) {
	if i < 0 || i+1 >= len(*e) || (*e)[i].offset+(*e)[i].size != (*e)[i+1].offset {
		return
	}
	(*e)[i].size += (*e)[i+1].size
	*e = slices.Delete(*e, i+1, i+2)
}
