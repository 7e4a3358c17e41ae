package bolt_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// contents is all that a state file says.
type contents struct {
	functions []function.Function
	instances []instance.Record
	models    []wire.Record
}

func read(t *testing.T, path string) (c contents, err error) {
	t.Helper()
	var l ports.Listing
	if l, err = bolt.Open(path).Look(t.Context()); err != nil {
		return c, err
	}
	models, err := bolt.Open(path).Models(t.Context())
	return contents{l.Functions, l.Instances, models}, err
}

// small makes a state file with one of each, and returns it with what it says and
// what it said before its last transaction.
func small(t *testing.T) (data []byte, now, before contents) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	db := bolt.Open(path)
	f := function.Function{Name: "f", Command: []string{"serve", "--model", "resnet"}, Dir: "/srv"}
	f.GPUMem, f.Env = 2*gpu.GiB, map[string]string{"KEY": "value"}
	var err error
	if err = db.Apply(t.Context(), f, function.Function{Name: "g", Command: []string{"x"}}); err == nil {
		err = db.PutModel(t.Context(), wire.Record{Name: "m"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if before, err = read(t, path); err != nil {
		t.Fatal(err)
	}
	if err := db.Reserve(t.Context(), instance.Record{ID: "f-0", Function: "f", Runtime: instance.Process}); err != nil {
		t.Fatal(err)
	}
	if now, err = read(t, path); err != nil {
		t.Fatal(err)
	}
	if data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return data, now, before
}

// With whichever byte of the file another, by a bit or by all, it is refused with
// what to do, or says what was written: no limit, command or record is ever another
// or missing without a word.
func TestEveryByteDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("one thing after the other, many times")
	}
	data, now, before := small(t)
	path := filepath.Join(t.TempDir(), "state.db")
	refused, tried := 0, 0
	for at := range data {
		if data[at] == 0 && at%97 != 0 { // most is empty
			continue
		}
		for _, mask := range []byte{0x01, 0xff} {
			tried++
			damaged := bytes.Clone(data)
			damaged[at] ^= mask
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := read(t, path)
			var file *bolt.FileError
			switch {
			case errors.As(err, &file) && file.Hint() != "":
				refused++
			case err != nil:
				t.Errorf("byte %d^%x: refused by %v", at, mask, err)
			case !reflect.DeepEqual(got, now) && !reflect.DeepEqual(got, before):
				t.Errorf("byte %d^%x: it says %+v", at, mask, got)
			}
		}
	}
	if refused < 1000 {
		t.Errorf("%d of %d were refused", refused, tried)
	}
}

// What a repair keeps is as it was written.
func TestRepairTrustsNoSum(t *testing.T) {
	data, now, _ := small(t)
	data = bytes.ReplaceAll(data, []byte("resnet"), []byte("Resnet"))
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, path); !bolt.IsDamaged(err) || !strings.Contains(err.Error(), "function f") {
		t.Errorf("it is read: %v", err)
	}
	l, err := bolt.Open(path).Salvage(t.Context())
	if err != nil || len(l.Functions) != 1 || l.Functions[0].Name != "g" || !reflect.DeepEqual(l.Instances, now.instances) {
		t.Errorf("kept are %+v, %v", l, err)
	}
}

// A file that was written before there were sums is read, and has them from its
// next write on.
func TestWithoutSums(t *testing.T) {
	path := filepath.Join("testdata", "schema1.db")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := read(t, path)
	if err != nil || len(old.functions) != 2 || len(old.instances) != 1 || len(old.models) != 1 {
		t.Fatalf("%+v, %v", old, err)
	}
	if err := bolt.Open(path).Forget(t.Context(), "none"); err != nil {
		t.Fatal(err)
	}
	if now, err := read(t, path); err != nil || !reflect.DeepEqual(now, old) {
		t.Errorf("it says %+v, %v; before it was %+v", now, err, old)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		for _, name := range []string{"functions", "instances", "models"} {
			err := tx.Bucket([]byte(name)).ForEach(func(k, v []byte) error {
				if bytes.HasPrefix(v, []byte("{")) {
					t.Errorf("%s %s has no sum: %s", name, k, v)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
