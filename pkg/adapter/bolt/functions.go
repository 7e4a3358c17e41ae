package bolt

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/function"
)

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

// Functions returns the applied functions by name.
func (d *DB) Functions(ctx context.Context) ([]function.Function, error) {
	var out []function.Function
	err := d.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket(functionsBucket).ForEach(func(k, v []byte) error {
			f, err := decodeFunction(string(k), v)
			out = append(out, f)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
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
		bucket := tx.Bucket(functionsBucket)
		missing := absent(names, func(name string) bool { return bucket.Get([]byte(name)) != nil })
		if len(missing) > 0 {
			return &NotFoundError{Kind: "function", Names: missing}
		}
		records, err := readRecords(tx)
		if err != nil {
			return err
		}
		if err := checkUnused(names, records); err != nil {
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
