// Package bolt keeps gfaas's state, the applied functions and the instances
// that were started, in one bbolt file that nobody holds open between
// operations.
package bolt

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// schema is the version of what the file holds.
const schema = "2"

var (
	functionsBucket = []byte("functions")
	instancesBucket = []byte("instances")
	metaBucket      = []byte("meta")
	schemaKey       = []byte("schema")

	buckets = [][]byte{functionsBucket, instancesBucket, metaBucket}
)

// DB is the Catalog in a bbolt file.
type DB struct {
	path string
	// Operations of this process queue here: polling for the file's lock, as
	// other processes do, is not fair and could outlast lockWait.
	mu   sync.RWMutex
	seen seen
}

var _ ports.Catalog = (*DB)(nil)

// Open names the state file. The file and its folders are made by the first
// operation that writes.
func Open(path string) *DB { return &DB{path: path, seen: seen{written: make(chan struct{})}} }

// view runs one reading transaction. Readers share the file's lock. Where
// nothing has been written yet, f is not called.
func (d *DB) view(ctx context.Context, f func(*bbolt.Tx) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if empty, err := d.empty(); err != nil || empty {
		return err
	}
	return d.using(true, func(db *bbolt.DB) error {
		return db.View(func(tx *bbolt.Tx) error {
			if written, err := d.check(tx); err != nil || !written {
				return err
			}
			return f(tx)
		})
	})
}

// update runs one writing transaction.
func (d *DB) update(ctx context.Context, f func(*bbolt.Tx) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.create(); err != nil {
		return err
	}
	defer d.seen.tell()
	return d.using(false, func(db *bbolt.DB) error {
		var refused error
		err := db.Update(func(tx *bbolt.Tx) error {
			if _, refused = d.check(tx); refused == nil {
				refused = layOut(tx)
			}
			if refused == nil {
				refused = f(tx)
			}
			if refused == nil {
				refused = settle(tx)
			}
			return refused
		})
		if err != nil && refused == nil {
			err = &FileError{Path: d.path, Err: err}
		}
		return err
	})
}

// check refuses a file that lacks a part, and one that a later version of the
// program wrote. In one that has no part nothing was written so far.
func (d *DB) check(tx *bbolt.Tx) (written bool, err error) {
	there := 0
	for _, name := range buckets {
		if tx.Bucket(name) != nil {
			there++
		}
	}
	switch there {
	case 0:
		return false, nil
	case len(buckets):
	default:
		return false, d.damaged(fmt.Errorf("it has %d of its %d parts", there, len(buckets)))
	}
	if got := tx.Bucket(metaBucket).Get(schemaKey); string(got) != schema && string(got) != oldSchema {
		return false, &FileError{Path: d.path, Err: fmt.Errorf("schema %q, expected %q: it belongs to another version of gfaas", got, schema)}
	}
	return true, nil
}

// Apply adds the functions, in place of those of the same names.
func (d *DB) Apply(ctx context.Context, functions ...function.Function) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		for _, f := range functions {
			data, err := encodeFunction(f)
			if err != nil {
				return err
			}
			if err := put(tx, functionsBucket, []byte(f.Name), data); err != nil {
				return err
			}
		}
		return nil
	})
}

// Change makes a function what change makes of it.
func (d *DB) Change(ctx context.Context, name string, change func(*function.Function) error) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		text := tx.Bucket(functionsBucket).Get([]byte(name))
		if text == nil {
			return &ports.NotFoundError{Kind: "function", Names: []string{name}}
		}
		f, err := decodeFunction(name, text)
		if err != nil {
			return d.damaged(err)
		}
		if err := change(&f); err != nil {
			return err
		}
		data, err := encodeFunction(f)
		if err != nil {
			return err
		}
		return put(tx, functionsBucket, []byte(name), data)
	})
}

// Remove removes the functions.
func (d *DB) Remove(ctx context.Context, names ...string) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		var records []instance.Record
		err := tx.Bucket(instancesBucket).ForEach(func(k, v []byte) error {
			r, err := decodeRecord(string(k), v)
			records = append(records, r)
			return err
		})
		if err != nil {
			return d.damaged(err)
		}
		bucket := tx.Bucket(functionsBucket)
		if err := ports.CheckRemove(names, has(bucket), records); err != nil {
			return err
		}
		for _, name := range names {
			if err := bucket.Delete([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	})
}

func has(bucket *bbolt.Bucket) func(string) bool {
	return func(key string) bool { return bucket.Get([]byte(key)) != nil }
}

// Reserve adds records of instances that are about to start.
func (d *DB) Reserve(ctx context.Context, records ...instance.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		if err := ports.CheckReserve(records, has(tx.Bucket(instancesBucket)), has(tx.Bucket(functionsBucket))); err != nil {
			return err
		}
		for _, r := range records {
			if err := putRecord(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Update replaces a record.
func (d *DB) Update(ctx context.Context, record instance.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		if !has(tx.Bucket(instancesBucket))(record.ID) {
			return &ports.NotFoundError{Kind: "instance", Names: []string{record.ID}}
		}
		return putRecord(tx, record)
	})
}

// Forget removes the records with these ids.
func (d *DB) Forget(ctx context.Context, ids ...string) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		for _, id := range ids {
			if err := tx.Bucket(instancesBucket).Delete([]byte(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// storedFunction is a function as the file keeps it: its document, which is a
// public format, and the folder that its relative command starts in.
type storedFunction struct {
	Dir  string `json:"dir"`
	YAML string `json:"yaml"`
}

func encodeFunction(f function.Function) ([]byte, error) {
	text, err := function.Format([]function.Function{f})
	if err != nil {
		return nil, err
	}
	return json.Marshal(storedFunction{Dir: f.Dir, YAML: string(text)})
}

func decodeFunction(key string, value []byte) (function.Function, error) {
	var s storedFunction
	data, err := text(functionsBucket, []byte(key), value)
	if err != nil {
		return function.Function{}, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return function.Function{}, fmt.Errorf("state of function %s: %w", key, err)
	}
	list, err := function.Parse(strings.NewReader(s.YAML), "state of function "+key)
	if err != nil {
		return function.Function{}, err
	}
	if len(list) != 1 {
		return function.Function{}, fmt.Errorf("state of function %s: %d documents, expected 1", key, len(list))
	}
	list[0].Dir = s.Dir
	return list[0], nil
}

func decodeRecord(key string, value []byte) (instance.Record, error) {
	var r instance.Record
	data, err := text(instancesBucket, []byte(key), value)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("state of instance %s: %w", key, err)
	}
	return r, nil
}

func putRecord(tx *bbolt.Tx, r instance.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return put(tx, instancesBucket, []byte(r.ID), data)
}
