package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Salvage is what can still be read of a state file that is damaged. What cannot
// is left out.
func (d *DB) Salvage(ctx context.Context) (l ports.Listing, err error) {
	if err := ctx.Err(); err != nil {
		return l, err
	}
	if empty, err := d.empty(); err != nil || empty {
		return l, err
	}
	f, err := d.hold(true)
	if err != nil {
		return l, err
	}
	defer f.Close()
	data, err := contents(f)
	if err != nil {
		return l, &FileError{Path: d.path, Err: err}
	}
	seen := map[string]bool{}
	salvage(data, func(bucket, key, value []byte) {
		name := string(bucket) + " " + string(key)
		if seen[name] {
			return
		}
		switch {
		case string(bucket) == string(functionsBucket):
			if fn, err := decodeFunction(string(key), value); err == nil && fn.Name == string(key) {
				seen[name] = true
				l.Functions = append(l.Functions, fn)
			}
		case string(bucket) == string(instancesBucket):
			if r, err := decodeRecord(string(key), value); err == nil && r.ID == string(key) && instance.ValidID(r.ID) {
				seen[name] = true
				l.Instances = append(l.Instances, r)
			}
		}
	})
	return l, nil
}

// Restore adds records, or replaces those of their ids, whatever else is known.
func (d *DB) Restore(ctx context.Context, records ...instance.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		for _, r := range records {
			if err := putRecord(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Replace puts the file aside, under the name it returns (empty if there was
// none), and one with these functions and records in its place. There is a file
// of that name at any time.
func (d *DB) Replace(ctx context.Context, functions []function.Function, records []instance.Record) (aside string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err
	}
	empty, err := d.empty()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(d.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", &FileError{Path: d.path, Err: err}
	}
	fresh, err := makeFile(dir, func(tx *bbolt.Tx) error { return writeAll(tx, functions, records) })
	if err != nil {
		return "", &FileError{Path: d.path, Err: err}
	}
	defer os.Remove(fresh)
	defer d.seen.tell()
	if !empty {
		held, err := d.hold(false) // nobody writes to it any more
		if err != nil {
			return "", err
		}
		defer held.Close()
		if aside, err = putAside(d.path); err != nil {
			return "", &FileError{Path: d.path, Err: err}
		}
	}
	if err := os.Rename(fresh, d.path); err != nil {
		return aside, &FileError{Path: d.path, Err: err}
	}
	return aside, syncDir(dir)
}

func writeAll(tx *bbolt.Tx, functions []function.Function, records []instance.Record) error {
	if err := layOut(tx); err != nil {
		return err
	}
	for _, fn := range functions {
		data, err := encodeFunction(fn)
		if err != nil {
			return err
		}
		if err := put(tx, functionsBucket, []byte(fn.Name), data); err != nil {
			return err
		}
	}
	for _, r := range records {
		if err := putRecord(tx, r); err != nil {
			return err
		}
	}
	return settle(tx)
}

// putAside gives a file a second name.
func putAside(path string) (aside string, err error) {
	base := path + ".damaged-" + time.Now().UTC().Format("20060102T150405")
	aside = base
	for n := 2; ; n++ {
		err := os.Link(path, aside)
		if !errors.Is(err, unix.EEXIST) {
			return aside, err
		}
		aside = fmt.Sprintf("%s-%d", base, n)
	}
}
