package bolt

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// modelsBucket holds what the model daemon knows of models. It is made by the first
// one that is put: files from before there were models have none.
var modelsBucket = []byte("models")

func modelKey(tenant, name string) []byte { return []byte(tenant + "\x00" + name) }

// Models are the models that were put, by tenant and name.
func (d *DB) Models(ctx context.Context) (records []wire.Record, err error) {
	err = d.view(ctx, func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(modelsBucket)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, v []byte) error {
			var r wire.Record
			data, err := text(modelsBucket, k, v)
			if err == nil {
				err = json.Unmarshal(data, &r)
			}
			if err != nil {
				return d.damaged(fmt.Errorf("state of model %q: %w", k, err))
			}
			records = append(records, r)
			return nil
		})
	})
	return records, err
}

// PutModel keeps a model, in place of what was kept of it.
func (d *DB) PutModel(ctx context.Context, r wire.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return d.update(ctx, func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(modelsBucket); err != nil {
			return err
		}
		return put(tx, modelsBucket, modelKey(r.Tenant, r.Name), data)
	})
}

// DeleteModel forgets a model. One that is not kept is no error.
func (d *DB) DeleteModel(ctx context.Context, tenant, name string) error {
	return d.update(ctx, func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(modelsBucket)
		if bucket == nil {
			return nil
		}
		return bucket.Delete(modelKey(tenant, name))
	})
}
