package wire

import "testing"

// TestHotIsGeneric compares the hand-written decoders with Parse.
func TestHotIsGeneric(t *testing.T) {
	r := Return{Lease: 0x01020304, Flags: ReturnWantsMore, UsedNS: 0x1122334455667788}
	if got := ReadReturn(Append(nil, r)); got != r {
		t.Errorf("%+v is read as %+v", r, got)
	}
	e := Ending{Lease: 1<<32 - 2, Reserved: 7, LeftNS: 0x1122334455667788}
	if got := ReadEnding(Append(nil, e)); got != e {
		t.Errorf("%+v is read as %+v", e, got)
	}
	for _, m := range sample(t) {
		if got := Kind(Append(nil, m)); got != m.Type() {
			t.Errorf("%T is of kind %d", m, got)
		}
	}
}

func TestHotAllocatesNothing(t *testing.T) {
	frame, ending := Append(nil, Return{Lease: 7, UsedNS: 8}), Append(nil, Ending{Lease: 7})
	n := testing.AllocsPerRun(100, func() {
		if Kind(frame) != MsgReturn || ReadReturn(frame).Lease != 7 || Kind(ending) != MsgEnding || ReadEnding(ending).Lease != 7 {
			t.Error("not what was encoded")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkReadReturn(b *testing.B) {
	frame := Append(nil, Return{Lease: 7, UsedNS: 8})
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if Kind(frame) != MsgReturn || ReadReturn(frame).Lease != 7 {
				b.Fatal("wrong")
			}
		}
	})
	b.Run("generic", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse(frame); err != nil {
				b.Fatal(err)
			}
		}
	})
}
