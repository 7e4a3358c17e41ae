package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// A bbolt file as bbolt lays it out (its internal/common): pages of one size,
// numbered from 0, the first two of which are meta pages. bbolt believes what it
// reads: of a damaged file it panics, touches memory that is not there, or follows
// a circle for ever. So the pages are looked at before it sees them.
const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	metaLength  = 64

	headerLength  = 16
	elementLength = 16

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	noFreelist  = ^uint64(0)
	bucketEntry = 0x01

	smallestPage, largestPage = 1 << 10, 16 << 20
)

// maxFile is the largest state file that is read, in bytes.
const maxFile = 1 << 30

// meta is what a meta page says of one transaction's state.
type meta struct {
	pageSize             uint64
	root, freelist, used uint64 // pages; used is how many there are in all
	transaction          uint64
}

var order = binary.NativeEndian

// readMeta reads the meta page that begins there, if there is one.
func readMeta(data []byte, at int) (m meta, ok bool) {
	if at+headerLength+metaLength > len(data) {
		return m, false
	}
	b := data[at+headerLength:]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaLength-8])
	if order.Uint32(b) != metaMagic || order.Uint32(b[4:]) != metaVersion || order.Uint64(b[metaLength-8:]) != sum.Sum64() {
		return m, false
	}
	m = meta{uint64(order.Uint32(b[8:])), order.Uint64(b[16:]), order.Uint64(b[32:]), order.Uint64(b[40:]), order.Uint64(b[48:])}
	size := m.pageSize
	return m, size >= smallestPage && size <= largestPage && size&(size-1) == 0 && (at == 0 || uint64(at) == size)
}

// metas are those of a file that are whole, the newest first.
func metas(data []byte) (list []meta) {
	if m, ok := readMeta(data, 0); ok {
		list = append(list, m)
	}
	for at := smallestPage; at <= largestPage; at *= 2 {
		if m, ok := readMeta(data, at); ok {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b meta) int { return -int(min(max(int64(a.transaction-b.transaction), -1), 1)) })
	return list
}

// pages are those of one state of a file.
type pages struct {
	data []byte
	meta
	seen []bool

	// faulty is asked whether to go on after a fault, without what it is about.
	faulty func(error) error
	// entry, if set, is given each entry that is no bucket, and the names of the
	// buckets that it is in.
	entry func(bucket, key, value []byte)
}

// errNone is of what may never have been a state file.
var errNone = errors.New("is no state file: neither of its first two pages is as one has them")

// sound says what is wrong with a file: nil when bbolt can be trusted with it.
func sound(data []byte) error {
	list := metas(data)
	if len(list) == 0 {
		return errNone
	}
	t := newTally()
	if err := walk(data, list[0], func(err error) error { return err }, t.add); err != nil {
		return err
	}
	if t.entries == 0 && list[0].transaction > 1 { // bbolt makes a file with 0 and 1
		return errors.New("nothing is in it, and something was")
	}
	return t.check()
}

// salvage gives all entries that can still be reached in a damaged file.
func salvage(data []byte, entry func(bucket, key, value []byte)) {
	for _, m := range metas(data) {
		found := false
		_ = walk(data, m, func(error) error { return nil }, func(bucket, key, value []byte) {
			found = true
			entry(bucket, key, value)
		})
		if found {
			return
		}
	}
}

func walk(data []byte, m meta, faulty func(error) error, entry func(bucket, key, value []byte)) error {
	p := &pages{data: data, meta: m, faulty: faulty, entry: entry}
	if whole := uint64(len(data)) / m.pageSize; m.used > whole {
		if err := faulty(fmt.Errorf("it is cut short: %d pages, expected %d", whole, m.used)); err != nil {
			return err
		}
		p.used = whole
	}
	p.seen = make([]bool, p.used)
	if err := p.bucket(nil, p.root); err != nil {
		return err
	}
	if p.freelist == noFreelist {
		return nil
	}
	return p.free()
}

// page is what there is behind the header of a page and its overflow, which no
// other may have led to.
func (p *pages) page(id uint64, kinds ...uint16) (body []byte, kind uint16, count int, err error) {
	if id < 2 || id >= p.used {
		return nil, 0, 0, fmt.Errorf("page %d is none of its pages", id)
	}
	b := p.data[id*p.pageSize:]
	kind, count = order.Uint16(b[8:]), int(order.Uint16(b[10:]))
	more := uint64(order.Uint32(b[12:]))
	switch {
	case order.Uint64(b) != id || !slices.Contains(kinds, kind):
		return nil, 0, 0, fmt.Errorf("page %d is not as it was written", id)
	case more >= p.used-id:
		return nil, 0, 0, fmt.Errorf("page %d does not end within the file", id)
	}
	for i := id; i <= id+more; i++ {
		if p.seen[i] {
			return nil, 0, 0, fmt.Errorf("page %d is in two places", i)
		}
		p.seen[i] = true
	}
	return b[headerLength : (more+1)*p.pageSize], kind, count, nil
}

// bucket walks the tree of a bucket in order of its keys.
func (p *pages) bucket(name []byte, root uint64) error {
	var last []byte
	return p.tree(name, root, nil, &last)
}

// tree walks what is behind a page; its keys are after the last one and not before
// the first one.
func (p *pages) tree(bucket []byte, id uint64, first []byte, last *[]byte) error {
	body, kind, count, err := p.page(id, branchPage, leafPage)
	if err != nil {
		return p.faulty(err)
	}
	if kind == leafPage {
		return p.leaf(bucket, body, count, id, first, last)
	}
	for i := range count {
		at := i * elementLength
		if at+elementLength > len(body) {
			return p.faulty(fmt.Errorf("page %d has no room for its %d elements", id, count))
		}
		position, keySize := uint64(order.Uint32(body[at:])), uint64(order.Uint32(body[at+4:]))
		key, ok := part(body, at, position, keySize)
		if !ok {
			return p.faulty(fmt.Errorf("page %d: key %d is not within it", id, i))
		}
		if bytes.Compare(key, first) < 0 || *last != nil && bytes.Compare(*last, key) >= 0 {
			if err := p.faulty(fmt.Errorf("page %d: key %d is not in order", id, i)); err != nil {
				return err
			}
			key = first // of a damaged file as much as there is
		}
		if err := p.tree(bucket, order.Uint64(body[at+8:]), key, last); err != nil {
			return err
		}
	}
	if count == 0 {
		return p.faulty(fmt.Errorf("page %d leads nowhere", id))
	}
	return nil
}

// leaf looks at the entries of a page, or of a bucket within an entry (of page 0).
func (p *pages) leaf(bucket, body []byte, count int, id uint64, first []byte, last *[]byte) error {
	for i := range count {
		at := i * elementLength
		if at+elementLength > len(body) {
			return p.faulty(fmt.Errorf("page %d has no room for its %d entries", id, count))
		}
		flags, position := order.Uint32(body[at:]), uint64(order.Uint32(body[at+4:]))
		keySize, valueSize := uint64(order.Uint32(body[at+8:])), uint64(order.Uint32(body[at+12:]))
		key, ok := part(body, at, position, keySize)
		value, ok2 := part(body, at, position+keySize, valueSize)
		var err error
		switch {
		case !ok || !ok2 || keySize == 0 || flags > bucketEntry:
			err = fmt.Errorf("page %d: entry %d is not within it", id, i)
		case bytes.Compare(key, first) < 0 || *last != nil && bytes.Compare(*last, key) >= 0:
			err = fmt.Errorf("page %d: entry %d is not in order", id, i)
		case flags == bucketEntry:
			*last = key
			err = p.within(key, value, id)
		default:
			*last = key
			if p.entry != nil {
				p.entry(bucket, key, value)
			}
			continue
		}
		if err != nil {
			if err = p.faulty(err); err != nil {
				return err
			}
		}
	}
	return nil
}

// within is a bucket whose header is the value of an entry; a small one is all
// there.
func (p *pages) within(name, value []byte, id uint64) error {
	const bucketHeader = 16
	if len(value) < bucketHeader {
		return fmt.Errorf("page %d: a bucket of %d bytes", id, len(value))
	}
	if root := order.Uint64(value); root != 0 {
		return p.bucket(name, root)
	}
	if value = value[bucketHeader:]; len(value) < headerLength || order.Uint16(value[8:]) != leafPage {
		return fmt.Errorf("page %d: a bucket that is not as it was written", id)
	}
	var last []byte
	return p.leaf(name, value[headerLength:], int(order.Uint16(value[10:])), 0, nil, &last)
}

// part is what lies at a position counted from an element.
func part(body []byte, element int, position, size uint64) ([]byte, bool) {
	from := uint64(element) + position
	if to := from + size; to <= uint64(len(body)) {
		return body[from:to:to], true
	}
	return nil, false
}

// free looks at the list of free pages, none of which may be in use.
func (p *pages) free() error {
	body, _, count, err := p.page(p.freelist, freelistPage)
	if err != nil {
		return p.faulty(err)
	}
	ids := uint64(count)
	if ids == 0xFFFF { // too many for the header
		ids, body = order.Uint64(body), body[8:]
	}
	if ids > uint64(len(body)/8) {
		return p.faulty(fmt.Errorf("page %d has no room for %d free pages", p.freelist, ids))
	}
	for i := range ids {
		id := order.Uint64(body[i*8:])
		if id < 2 || id >= p.used || p.seen[id] {
			if err := p.faulty(fmt.Errorf("page %d: page %d cannot be free", p.freelist, id)); err != nil {
				return err
			}
			continue
		}
		p.seen[id] = true
	}
	return nil
}
