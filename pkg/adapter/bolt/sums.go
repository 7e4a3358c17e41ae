package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
)

// bbolt has a checksum for its meta pages only: a byte of a value that a disk or a
// stray write made another would be another memory limit, or another command, without
// a word. So since schema 2 each value begins with the checksum of its bucket, key
// and text, and the meta bucket holds one of all entries, by which one that is
// missing is missed too. Files of schema 1 have neither, and get both with the next
// write.

// oldSchema is the version of files without checksums.
const oldSchema = "1"

var sumKey = []byte("sum")

// castagnoli is made when it is first needed, not at every program's start.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

const sumLength = 8 // hex digits

// add is the checksum of what that one is of, and these parts, each so that it does
// not run into the next.
func add(sum uint32, parts ...[]byte) uint32 {
	var length [8]byte
	for _, part := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(part)))
		sum = crc32.Update(sum, castagnoli(), length[:])
		sum = crc32.Update(sum, castagnoli(), part)
	}
	return sum
}

// printed is a checksum as the file has it.
func printed(sum uint32) []byte { return fmt.Appendf(nil, "%0*x", sumLength, sum) }

// seal is a text as a bucket keeps it.
func seal(bucket, key, text []byte) []byte {
	return append(printed(add(0, bucket, key, text)), text...)
}

// isSealed tells a value from one of schema 1, which is a JSON object.
func isSealed(value []byte) bool { return !bytes.HasPrefix(value, []byte("{")) }

// text is what is kept in a value, if it is as it was written.
func text(bucket, key, value []byte) ([]byte, error) {
	if !isSealed(value) {
		return value, nil
	}
	if len(value) < sumLength || !bytes.Equal(value[:sumLength], printed(add(0, bucket, key, value[sumLength:]))) {
		return nil, fmt.Errorf("state of %s: it is not as it was written", entryName(bucket, key))
	}
	return value[sumLength:], nil
}

// entryName is "function f" of the bucket of functions.
func entryName(bucket, key []byte) string {
	return string(bytes.TrimSuffix(bucket, []byte("s"))) + " " + string(bytes.ReplaceAll(key, []byte{0}, []byte("/")))
}

// tally looks at the entries of a file in their order, all of them.
type tally struct {
	sum         uint32
	schema, all []byte // as the file says
	entries     int
	sealed      bool  // all but the meta bucket's are
	fault       error // of the first that is not as it was written
}

func newTally() *tally { return &tally{sealed: true} }

func (t *tally) add(bucket, key, value []byte) {
	t.entries++
	if bytes.Equal(bucket, metaBucket) {
		switch {
		case bytes.Equal(key, sumKey):
			t.all = value
			return
		case bytes.Equal(key, schemaKey):
			t.schema = value
		}
	} else {
		t.sealed = t.sealed && isSealed(value)
		if _, err := text(bucket, key, value); err != nil && t.fault == nil {
			t.fault = err
		}
	}
	t.sum = add(t.sum, bucket, key, value)
}

// check says what is wrong with the entries. Those of another schema than we know
// are not looked at.
func (t *tally) check() error {
	switch {
	case t.schema == nil && t.all == nil, t.schema != nil && string(t.schema) != schema && string(t.schema) != oldSchema:
		return nil
	case t.fault != nil:
		return t.fault
	case string(t.schema) == oldSchema && t.all == nil:
		return nil
	case string(t.schema) != schema, !t.sealed, !bytes.Equal(t.all, printed(t.sum)):
		return errors.New("its parts are not all as they were written")
	}
	return nil
}

// put writes an entry.
func put(tx *bbolt.Tx, bucket, key, text []byte) error {
	return tx.Bucket(bucket).Put(key, seal(bucket, key, text))
}

// settle is the last thing that a transaction does: all entries have a checksum
// then, and are in that of them all.
func settle(tx *bbolt.Tx) error {
	if err := tx.Bucket(metaBucket).Put(schemaKey, []byte(schema)); err != nil {
		return err
	}
	t := newTally()
	err := tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		if bytes.Equal(name, metaBucket) {
			return nil
		}
		var old [][2][]byte
		err := b.ForEach(func(k, v []byte) error {
			if !isSealed(v) {
				old = append(old, [2][]byte{bytes.Clone(k), bytes.Clone(v)})
			}
			return nil
		})
		for _, entry := range old {
			if err == nil {
				err = put(tx, name, entry[0], entry[1])
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	err = tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error { t.add(name, k, v); return nil })
	})
	if err != nil {
		return err
	}
	return tx.Bucket(metaBucket).Put(sumKey, printed(t.sum))
}
