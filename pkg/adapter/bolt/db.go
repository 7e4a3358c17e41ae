package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
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

// DB is the Store in a bbolt file.
type DB struct {
	path string
	// Operations of this process queue here: polling for the file's lock, as
	// other processes do, is not fair and could outlast lockWait.
	mu sync.RWMutex
}

// Open names the state file. The file and its folders are made by the first
// operation that writes.
func Open(path string) *DB { return &DB{path: path} }

var _ Store = (*DB)(nil)

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
