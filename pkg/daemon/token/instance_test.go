package token

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

func FuzzParseRecord(f *testing.F) {
	inst, err := newInstance(reg("a", share{sm: 24, request: 0.3, limit: 0.8}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(inst.encode())
	f.Add([]byte("{}"))
	f.Add([]byte(`{"instance":"a","secret_sha256":"00"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		inst, err := parseRecord(text)
		if err != nil {
			return
		}
		printed := inst.encode()
		if !json.Valid(printed) {
			t.Fatalf("encoded record: got invalid JSON: %s", printed)
		}
		again, err := parseRecord(printed)
		if err != nil || !reflect.DeepEqual(again.reg, inst.reg) || again.secret != inst.secret || again.ownerStart != inst.ownerStart {
			t.Fatalf("record after writing and reading: got %+v, %v; want %+v", again, err, inst)
		}
	})
}

func TestStartTime(t *testing.T) {
	a, err1 := startTime(os.Getpid())
	b, err2 := startTime(os.Getpid())
	if a == 0 || a != b || err1 != nil || err2 != nil {
		t.Errorf("start time of this process: got %d, %v, then %d, %v; want the same time twice", a, err1, b, err2)
	}
	if got, err := startTime(1 << 30); got != 0 || err != nil {
		t.Errorf("start time of an unused PID: got %d, %v; want 0", got, err)
	}
}
