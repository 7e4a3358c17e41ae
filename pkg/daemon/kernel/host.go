package kernel

import (
	"fmt"
	"slices"
)

// domain is memory of the host that some executors share: all of them, or those
// of one client.
type domain struct {
	host Host
	free extents
}

// newDomain makes one. Its addresses are more than its budget, so that gaps between
// objects never keep one out; only what is used takes memory.
func (d *Daemon) newDomain() (*domain, error) {
	size := 4*d.cfg.HostMem + 256<<20
	h, err := d.cfg.NewHost(size)
	if err != nil {
		return nil, err
	}
	return &domain{host: h, free: extents{{0, size}}}, nil
}

// region is a part of a domain's memory.
type region struct {
	dom          *domain
	offset, size int64
}

func (r *region) bytes() []byte { return r.dom.host.Bytes()[r.offset : r.offset+r.size] }

// take finds room. Its bytes are not zeros: whoever takes it fills it.
func (dom *domain) take(size int64) (*region, error) {
	offset, ok := dom.free.take(size)
	if !ok {
		return nil, fmt.Errorf("no room for %d bytes", size)
	}
	return &region{dom, offset, size}, nil
}

// give gives a region back. Large ones leave no memory behind.
func (r *region) give() {
	const large = 1 << 20
	if r.size >= large {
		r.dom.host.Discard(r.offset, r.size)
	}
	r.dom.free.give(r.offset, r.size)
}

// extents are the parts of a memory that are free, in order and apart.
type extents []extent

type extent struct{ offset, size int64 }

// granule is what sizes are rounded up to.
const granule = 64

func rounded(size int64) int64 { return (size + granule - 1) / granule * granule }

// take takes the first part that is long enough.
func (e *extents) take(size int64) (offset int64, ok bool) {
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

// give joins a part with those beside it.
func (e *extents) give(offset, size int64) {
	size = rounded(size)
	i, _ := slices.BinarySearchFunc(*e, offset, func(x extent, at int64) int {
		if x.offset < at {
			return -1
		}
		return 1
	})
	before := i > 0 && (*e)[i-1].offset+(*e)[i-1].size == offset
	after := i < len(*e) && offset+size == (*e)[i].offset
	switch {
	case before && after:
		(*e)[i-1].size += size + (*e)[i].size
		*e = slices.Delete(*e, i, i+1)
	case before:
		(*e)[i-1].size += size
	case after:
		(*e)[i].offset, (*e)[i].size = offset, (*e)[i].size+size
	default:
		*e = slices.Insert(*e, i, extent{offset, size})
	}
}
