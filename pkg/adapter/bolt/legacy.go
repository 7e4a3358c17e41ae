package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"os"

	"go.etcd.io/bbolt"
)

// legacy reads a file of format 1 or 2, which earlier versions wrote: a bbolt
// database without a header. Its bucket "meta" has the format. In format 2 each value
// begins with a checksum, and "meta" holds a checksum of all entries.
//
// On some damaged databases, bbolt itself loops or crashes. So legacy reads bbolt's tree
// of pages without bbolt. An offset beyond the file panics, and read recovers from that.
type legacy struct {
	file     []byte
	pageSize uint64
	visited  int // pages

	entries      []legacyEntry
	version, sum string // of the format, and of all entries, as the file gives them
	computed     uint32 // checksum of all entries
}

type legacyEntry struct {
	bucket     string
	key, value []byte
}

const legacySum = 8 // hex digits of a checksum

var order = binary.NativeEndian

// upgrade returns the database of format 3 with the content of an old file.
func upgrade(file []byte) (image []byte, err error) {
	l := &legacy{file: file}
	root, found := l.root()
	if !found {
		return nil, errForeign
	}
	if err := l.read(root); err != nil {
		return nil, err
	}
	return edit(nil, func(tx *bbolt.Tx) error {
		for _, e := range l.entries {
			bucket, err := tx.CreateBucketIfNotExists([]byte(e.bucket))
			if err == nil {
				err = bucket.Put(e.key, e.value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// root returns the number of the root page, from that of bbolt's two meta pages that is
// valid and has the newest transaction.
func (l *legacy) root() (root uint64, found bool) {
	const header, length, magic = 16, 56, 0xED0CDAED
	newest := uint64(0)
	for _, at := range []int{header, os.Getpagesize() + header} {
		if len(l.file) < at+length+8 {
			break
		}
		meta, sum := l.file[at:], fnv.New64a()
		sum.Write(meta[:length])
		if order.Uint32(meta) != magic || order.Uint64(meta[length:]) != sum.Sum64() {
			continue
		}
		if transaction := order.Uint64(meta[48:]); !found || transaction > newest {
			found, newest, root, l.pageSize = true, transaction, order.Uint64(meta[16:]), uint64(order.Uint32(meta[8:]))
		}
	}
	return root, found
}

// read reads and checks all entries.
func (l *legacy) read(root uint64) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("its pages do not form a database")
		}
	}()
	l.page("", root)
	switch {
	case (l.version == "2" || l.sum != "") && l.sum != fmt.Sprintf("%0*x", legacySum, l.computed):
		return errSum
	case l.version == "2":
		for i := range l.entries {
			l.entries[i].value = l.entries[i].value[legacySum:]
		}
	case l.version != "1" && (l.version != "" || len(l.entries) > 0):
		return fmt.Errorf("%w: its format is %q, want %s", errVersion, l.version, format)
	}
	return nil
}

// page reads the tree below a page of a bucket, or of the database if bucket is empty.
func (l *legacy) page(bucket string, id uint64) {
	if l.visited++; l.visited > len(l.file)/int(l.pageSize) {
		panic("cycle")
	}
	l.elements(bucket, l.file[id*l.pageSize:])
}

// elements reads the elements of a page, or of a small bucket, which has the same form.
func (l *legacy) elements(bucket string, page []byte) {
	const header, size, branch, leaf, nested = 16, 16, 1, 2, 1
	kind := order.Uint16(page[8:])
	for i := range int(order.Uint16(page[10:])) {
		element := page[header+i*size:]
		switch kind {
		case branch:
			l.page(bucket, order.Uint64(element[8:]))
		case leaf:
			key := element[order.Uint32(element[4:]):]
			value := key[order.Uint32(element[8:]):][:order.Uint32(element[12:])]
			key = key[:order.Uint32(element[8:])]
			l.entry(bucket, key, value, order.Uint32(element) == nested)
		default:
			panic("unknown kind of page")
		}
	}
}

func (l *legacy) entry(bucket string, key, value []byte, nested bool) {
	switch {
	case nested && bucket == "" && order.Uint64(value) != 0:
		l.page(string(key), order.Uint64(value))
		return
	case nested && bucket == "": // a small bucket is in its value, behind a header
		l.elements(string(key), value[16:])
		return
	case bucket == "meta" && string(key) == "sum":
		l.sum = string(value)
		return
	case bucket == "meta":
		l.version = string(value)
	default:
		l.entries = append(l.entries, legacyEntry{bucket, key, value})
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, part := range [][]byte{[]byte(bucket), key, value} {
		l.computed = crc32.Update(l.computed, table, binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		l.computed = crc32.Update(l.computed, table, part)
	}
}
