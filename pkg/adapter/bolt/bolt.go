// Package bolt stores gfaas's state in a file: the applied functions, the instances that
// were started, and the models that the model daemon knows. DB implements ports.Catalog.
// gfaas, gfaas-modeld and gfaas-profile use it.
//
// The file is one line with a checksum, followed by a bbolt database. It is never
// changed in place. A writer changes a copy of the database in memory, writes it to
// a new file, and renames that:
//
//	state.db             the current generation
//	state.db.previous    the generation before it
//	state.db.new         a generation that is being written
//	state.db.damaged-…   a file that turned out to be damaged
//
// A reader compares the checksum before bbolt sees the database, and falls back to
// the previous generation if it does not match. bbolt works on a copy in memory,
// because it maps its file: if a part of a mapped file cannot be read from the disk or
// was cut off, a process that accesses it is killed (SIGBUS).
package bolt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

var (
	functionsBucket = []byte("functions")
	instancesBucket = []byte("instances")
	modelsBucket    = []byte("models")
)

// DB is a ports.Catalog in a state file.
type DB struct {
	path  string
	notef func(format string, args ...any)

	// mu queues the operations of this process: polling for the file's lock, as
	// other processes do, is not fair and could outlast lockWait.
	mu    sync.Mutex
	last  *state // the generation that was read last
	noted string // the last note to the user, which is not repeated

	lastListing lastListing
}

var _ ports.Catalog = (*DB)(nil)

// Open names the state file. The first operation that writes creates the file and
// its folders. If the file is damaged and its previous generation is used, notef
// gets a note for the user; it may be nil.
func Open(path string, notef func(format string, args ...any)) *DB {
	if notef == nil {
		notef = func(string, ...any) {}
	}
	return &DB{path: path, notef: notef}
}

// view returns the current state.
func (d *DB) view(ctx context.Context) (s *state, err error) {
	s = &state{}
	err = d.locked(ctx, forReading, func(f *os.File) (err error) {
		if f != nil {
			s, err = d.load(f)
		}
		return err
	})
	return s, err
}

// Values of the argument write of DB.locked.
const (
	forReading = false
	forWriting = true
)

// locked calls do with the current generation, which it opens and locks as lock does.
func (d *DB) locked(ctx context.Context, write bool, do func(f *os.File) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := d.lock(write)
	if err != nil {
		return err
	}
	defer f.Close() // of a nil file, it does nothing
	return do(f)
}

// update writes a new generation. change gets the current state, and modifies a copy of
// its database in tx. If change fails, nothing is written.
func (d *DB) update(ctx context.Context, change func(tx *bbolt.Tx, s *state) error) error {
	return d.locked(ctx, forWriting, func(f *os.File) error {
		s, err := d.load(f)
		if err != nil {
			return err
		}
		_, err = d.write(f, s, func(tx *bbolt.Tx) error { return change(tx, s) })
		return err
	})
}

// Apply adds the functions, or replaces those with the same names.
func (d *DB) Apply(ctx context.Context, functions ...function.Function) error {
	return d.update(ctx, func(tx *bbolt.Tx, s *state) error {
		if err := ports.CheckApply(s.functions, functions); err != nil {
			return err
		}
		for _, f := range functions {
			if err := putFunction(tx, f, time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Change modifies the function with this name by change.
func (d *DB) Change(ctx context.Context, name string, change func(*function.Function) error) error {
	return d.update(ctx, func(tx *bbolt.Tx, s *state) error {
		text := tx.Bucket(functionsBucket).Get([]byte(name))
		if text == nil {
			return &ports.NotFoundError{Kind: "function", Names: []string{name}}
		}
		var applied time.Time
		f, err := decodeFunction(text)
		if err == nil {
			applied, err = decodeApplied(text)
		}
		if err == nil {
			err = change(&f)
		}
		if err == nil {
			err = ports.CheckApply(s.functions, []function.Function{f})
		}
		if err != nil {
			return err
		}
		return putFunction(tx, f, applied)
	})
}

// Remove removes the functions.
func (d *DB) Remove(ctx context.Context, names ...string) error {
	return d.update(ctx, func(tx *bbolt.Tx, s *state) error {
		bucket := tx.Bucket(functionsBucket)
		if err := ports.CheckRemove(names, has(bucket), s.instances); err != nil {
			return err
		}
		return remove(bucket, names)
	})
}

// Reserve adds records of instances that are about to start.
func (d *DB) Reserve(ctx context.Context, records ...instance.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx, _ *state) error {
		if err := ports.CheckReserve(records, has(tx.Bucket(instancesBucket)), has(tx.Bucket(functionsBucket))); err != nil {
			return err
		}
		return putRecords(tx, records)
	})
}

// Update replaces a record.
func (d *DB) Update(ctx context.Context, record instance.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx, _ *state) error {
		if !has(tx.Bucket(instancesBucket))(record.ID) {
			return &ports.NotFoundError{Kind: "instance", Names: []string{record.ID}}
		}
		return putRecords(tx, []instance.Record{record})
	})
}

// Forget removes the records with these IDs.
func (d *DB) Forget(ctx context.Context, ids ...string) error {
	return d.update(ctx, func(tx *bbolt.Tx, _ *state) error { return remove(tx.Bucket(instancesBucket), ids) })
}

// Repair adds the records to the state, or replaces those with the same IDs. If the
// file is damaged, Repair renames it and returns the new name. The state then continues
// from the previous generation or, if that is damaged too, from an empty state.
func (d *DB) Repair(ctx context.Context, records ...instance.Record) (aside string, err error) {
	err = d.locked(ctx, forWriting, func(f *os.File) error {
		s, err := d.load(f)
		if isDamaged(err) {
			s, err = &state{damaged: true}, nil
		}
		if err != nil || !s.damaged && len(records) == 0 {
			return err
		}
		aside, err = d.write(f, s, func(tx *bbolt.Tx) error { return putRecords(tx, records) })
		return err
	})
	return aside, err
}

// modelKey returns the key of a model. A tenant's name has no zero byte.
func modelKey(tenant, name string) string { return tenant + "\x00" + name }

// Models returns the models, by tenant and name.
func (d *DB) Models(ctx context.Context) ([]wire.Record, error) {
	s, err := d.view(ctx)
	if err != nil {
		return nil, err
	}
	return s.models, nil
}

// PutModel adds a model, or replaces it.
func (d *DB) PutModel(ctx context.Context, r wire.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx, _ *state) error {
		return put(tx.Bucket(modelsBucket), modelKey(r.Tenant, r.Name), r)
	})
}

// DeleteModel removes a model, if it exists.
func (d *DB) DeleteModel(ctx context.Context, tenant, name string) error {
	return d.update(ctx, func(tx *bbolt.Tx, _ *state) error {
		return remove(tx.Bucket(modelsBucket), []string{modelKey(tenant, name)})
	})
}

// storedFunction is the stored form of a function: its document, which is a public
// format, and the folder in which its relative command starts.
type storedFunction struct {
	Dir     string    `json:"dir"`
	YAML    string    `json:"yaml"`
	Applied time.Time `json:"applied,omitzero"` // in UTC
}

// putFunction stores a function that was applied at the given time. An unchanged function keeps its
// time.
func putFunction(tx *bbolt.Tx, f function.Function, applied time.Time) error {
	text, err := function.Format([]function.Function{f})
	if err != nil {
		return err
	}
	bucket := tx.Bucket(functionsBucket)
	stored := storedFunction{Dir: f.Dir, YAML: string(text), Applied: applied.UTC().Truncate(time.Second)}
	if old := bucket.Get([]byte(f.Name)); old != nil {
		if before, err := decodeJSON[storedFunction](old); err == nil && before.Dir == stored.Dir && before.YAML == stored.YAML {
			stored.Applied = before.Applied
		}
	}
	return put(bucket, f.Name, stored)
}

// decodeApplied returns when a stored function was applied.
func decodeApplied(text []byte) (time.Time, error) {
	s, err := decodeJSON[storedFunction](text)
	return s.Applied, err
}

func decodeFunction(text []byte) (f function.Function, err error) {
	s, err := decodeJSON[storedFunction](text)
	if err != nil {
		return f, err
	}
	list, err := function.Parse(strings.NewReader(s.YAML), "its document")
	if err != nil {
		return f, err
	}
	if len(list) != 1 {
		return f, fmt.Errorf("%d documents, want 1", len(list))
	}
	list[0].Dir = s.Dir
	return list[0], nil
}

func decodeJSON[T any](text []byte) (v T, err error) {
	err = json.Unmarshal(text, &v)
	return v, err
}

func putRecords(tx *bbolt.Tx, records []instance.Record) error {
	for _, r := range records {
		if err := put(tx.Bucket(instancesBucket), r.ID, r); err != nil {
			return err
		}
	}
	return nil
}

func put(bucket *bbolt.Bucket, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return bucket.Put([]byte(key), text)
}

func remove(bucket *bbolt.Bucket, keys []string) error {
	for _, key := range keys {
		if err := bucket.Delete([]byte(key)); err != nil {
			return err
		}
	}
	return nil
}

func has(bucket *bbolt.Bucket) func(string) bool {
	return func(key string) bool { return bucket.Get([]byte(key)) != nil }
}
