package gfaas

import (
	"reflect"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance"
)

// What was kept of an instance that runs says more of it; of a process that does
// not run it says nothing, and of a container its engine may not have told.
func TestCombine(t *testing.T) {
	process := func(id string, pid int, contract string) instance.Record {
		return instance.Record{ID: id, Runtime: instance.Process, Contract: contract, Handle: instance.Handle{Runtime: instance.Process, PID: pid}}
	}
	container := instance.Record{ID: "c-0", Runtime: instance.Docker, Contract: "kept", Handle: instance.Handle{Container: "c"}}
	kept := []instance.Record{process("same", 7, "kept"), process("restarted", 8, "kept"), process("gone", 9, "kept"), container}
	lost := []instance.Record{process("new", 10, ""), process("restarted", 11, ""), process("same", 7, "")}
	want := []instance.Record{process("new", 10, ""), process("restarted", 11, ""), process("same", 7, "kept"), container}
	if got := combine(kept, lost); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}
