package journal

import (
	"encoding/binary"
	"sync"
)

// index maps calls to the keys of their records. Keys ascend in the order of acceptance,
// because adding records at the end of the tree writes the fewest pages. It is safe for
// concurrent use.
type index struct {
	mu        sync.Mutex
	keys      map[string]uint64 // by ID
	next      uint64            // key of the next new record
	forgotten []uint64          // keys of records to delete
}

// key returns the key of a call's record, or nil if the call is unknown.
func (x *index) key(id string) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	if key, known := x.keys[id]; known {
		return bytesOf(key)
	}
	return nil
}

func bytesOf(key uint64) []byte { return binary.BigEndian.AppendUint64(nil, key) }

// named returns the IDs with a name.
func (x *index) named(name string) (ids []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.keys {
		if NameOf(id) == name {
			ids = append(ids, id)
		}
	}
	return ids
}

// set adds a call whose record has the given key.
func (x *index) set(id string, key uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keys[id] = key
	x.next = max(x.next, key+1)
}

// add adds a call with a new key and returns the key.
func (x *index) add(id string) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := x.next
	x.keys[id] = key
	x.next++
	return bytesOf(key)
}

// remove removes a call. The next transaction deletes its record.
func (x *index) remove(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if key, known := x.keys[id]; known {
		x.forgotten = append(x.forgotten, key)
		delete(x.keys, id)
	}
}

// takeForgotten returns the keys of the records to delete, once. If the transaction that
// deletes them fails, the next Open finds them and forgets them again.
func (x *index) takeForgotten() (keys []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	keys, x.forgotten = x.forgotten, nil
	return keys
}
