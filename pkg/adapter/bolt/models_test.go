package bolt_test

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

func TestModels(t *testing.T) {
	db, ctx := bolt.Open(filepath.Join(t.TempDir(), "state.db"), nil), t.Context()
	want := func(want ...wire.Record) {
		t.Helper()
		if got, err := db.Models(ctx); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("models: got %+v, %v; want %+v", got, err, want)
		}
	}
	want()
	if err := db.DeleteModel(ctx, "default", "a"); err != nil {
		t.Error(err)
	}
	a := wire.Record{
		Tenant: "default", Name: "a", Generation: 2, SHA256: "5a", Content: "5a", Tensors: 1, Bytes: 10,
		Files: []wire.File{{Path: "/a", Size: 10, MTime: time.Unix(1700000000, 123456789).UTC()}},
	}
	b := wire.Record{Tenant: "other", Name: "a", Public: true}
	for _, r := range []wire.Record{b, a, a} {
		if err := db.PutModel(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	want(a, b)
	if err := db.DeleteModel(ctx, "default", "a"); err != nil {
		t.Error(err)
	}
	want(b)
}
