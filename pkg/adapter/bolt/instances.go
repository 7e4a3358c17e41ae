package bolt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Instances returns the records by id.
func (d *DB) Instances(ctx context.Context) (out []instance.Record, err error) {
	err = d.view(ctx, func(tx *bbolt.Tx) error {
		out, err = readRecords(tx)
		return err
	})
	return out, err
}

func readRecords(tx *bbolt.Tx) ([]instance.Record, error) {
	var out []instance.Record
	err := tx.Bucket(instancesBucket).ForEach(func(k, v []byte) error {
		var r instance.Record
		if err := json.Unmarshal(v, &r); err != nil {
			return fmt.Errorf("state of instance %s: %w", k, err)
		}
		out = append(out, r)
		return nil
	})
	return out, err
}

func putRecord(tx *bbolt.Tx, r instance.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return tx.Bucket(instancesBucket).Put([]byte(r.ID), data)
}

// Reserve adds records of instances that are about to start.
func (d *DB) Reserve(ctx context.Context, records ...instance.Record) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		err := checkReserve(records,
			func(id string) bool { return tx.Bucket(instancesBucket).Get([]byte(id)) != nil },
			func(name string) bool { return tx.Bucket(functionsBucket).Get([]byte(name)) != nil })
		if err != nil {
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
		if tx.Bucket(instancesBucket).Get([]byte(record.ID)) == nil {
			return &NotFoundError{Kind: "instance", Names: []string{record.ID}}
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

// checkReserve says why the records cannot be added: a function that is not
// there, an id that is taken, or one that comes twice.
func checkReserve(records []instance.Record, taken, applied func(string) bool) error {
	var functions, ids []string
	for _, r := range records {
		functions = append(functions, r.Function)
		ids = append(ids, r.ID)
	}
	if missing := absent(functions, applied); len(missing) > 0 {
		return &NotFoundError{Kind: "function", Names: missing}
	}
	var clash []string
	for i, id := range ids {
		if taken(id) || slices.Contains(ids[:i], id) {
			clash = append(clash, id)
		}
	}
	if len(clash) > 0 {
		return &ExistsError{IDs: clash}
	}
	return nil
}

// checkUnused says which records keep the functions from being removed.
func checkUnused(names []string, records []instance.Record) error {
	var used InUseError
	for _, r := range records {
		if !slices.Contains(names, r.Function) {
			continue
		}
		used.IDs = append(used.IDs, r.ID)
		if !slices.Contains(used.Functions, r.Function) {
			used.Functions = append(used.Functions, r.Function)
		}
	}
	if len(used.IDs) > 0 {
		return &used
	}
	return nil
}

// absent returns the names that are not there, each once, in their order.
func absent(names []string, there func(string) bool) []string {
	var out []string
	for _, name := range names {
		if !there(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
