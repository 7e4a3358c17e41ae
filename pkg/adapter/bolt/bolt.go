// Package bolt keeps gfaas's state, the applied functions and the instances
// that were started, in one bbolt file that nobody holds open between
// operations.
package bolt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// lockWait is how long an operation waits for another process's.
const lockWait = time.Second

// schema is the version of what the file holds.
const schema = "1"

var (
	functionsBucket = []byte("functions")
	instancesBucket = []byte("instances")
	metaBucket      = []byte("meta")
	schemaKey       = []byte("schema")
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

// LockedError says that another process kept the state file for longer than
// the time to wait for it.
type LockedError struct{ Path string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("state file %s is locked by another process", e.Path)
}

// Locked marks the error for the exit status.
func (e *LockedError) Locked() bool { return true }

// Hint says what to do about it.
func (e *LockedError) Hint() string { return "try again; 'fuser " + e.Path + "' tells who holds it" }

// FileError is a state file that cannot be used.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("state file %s: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *FileError) Hint() string { return "set GFAAS_STATE to a file of yours" }

// view runs one reading transaction. Readers share the file's lock. Where
// nothing has been written yet, f is not called.
func (d *DB) view(ctx context.Context, f func(*bbolt.Tx) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return nil
	}
	db, err := d.open(true)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		if err := d.checkSchema(tx); err != nil {
			return err
		}
		if tx.Bucket(metaBucket) == nil { // the first write failed
			return nil
		}
		return f(tx)
	})
}

// update runs one writing transaction.
func (d *DB) update(ctx context.Context, f func(*bbolt.Tx) error) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.path), 0o700); err != nil {
		return &FileError{Path: d.path, Err: err}
	}
	db, err := d.open(false)
	if err != nil {
		return err
	}
	defer d.seen.tell()
	defer func() {
		if closing := db.Close(); err == nil && closing != nil {
			err = fmt.Errorf("state file %s: %w", d.path, closing)
		}
	}()
	return db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{functionsBucket, instancesBucket, metaBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		if err := d.checkSchema(tx); err != nil {
			return err
		}
		if err := tx.Bucket(metaBucket).Put(schemaKey, []byte(schema)); err != nil {
			return err
		}
		return f(tx)
	})
}

func (d *DB) open(readOnly bool) (*bbolt.DB, error) {
	db, err := bbolt.Open(d.path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: readOnly})
	switch {
	case errors.Is(err, bberrors.ErrTimeout):
		return nil, &LockedError{Path: d.path}
	case err != nil:
		return nil, &FileError{Path: d.path, Err: err}
	}
	return db, nil
}

// checkSchema refuses a file that a later version of the program wrote.
func (d *DB) checkSchema(tx *bbolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return nil
	}
	if got := meta.Get(schemaKey); got != nil && !bytes.Equal(got, []byte(schema)) {
		return &FileError{Path: d.path, Err: fmt.Errorf("schema %q, expected %q: it belongs to another version of gfaas", got, schema)}
	}
	return nil
}

// Apply adds the functions, in place of those of the same names.
func (d *DB) Apply(ctx context.Context, functions ...function.Function) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		for _, f := range functions {
			data, err := encodeFunction(f)
			if err != nil {
				return err
			}
			if err := tx.Bucket(functionsBucket).Put([]byte(f.Name), data); err != nil {
				return err
			}
		}
		return nil
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
			return err
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

func decodeFunction(key string, data []byte) (function.Function, error) {
	var s storedFunction
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

func decodeRecord(key string, data []byte) (instance.Record, error) {
	var r instance.Record
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
	return tx.Bucket(instancesBucket).Put([]byte(r.ID), data)
}
