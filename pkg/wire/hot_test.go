package wire

import "testing"

// TestHotDecodersMatchParse compares the hand-written decoders with Parse.
func TestHotDecodersMatchParse(t *testing.T) {
	r := Return{Lease: 0x01020304, Flags: ReturnWantsMore, UsedNS: 0x1122334455667788}
	if got := ReadReturn(Append(nil, r)); got != r {
		t.Errorf("ReadReturn: got %+v, want %+v", got, r)
	}
	e := Ending{Lease: 1<<32 - 2, Reserved: 7, LeftNS: 0x1122334455667788}
	if got := ReadEnding(Append(nil, e)); got != e {
		t.Errorf("ReadEnding: got %+v, want %+v", got, e)
	}
	for _, m := range sample(t) {
		if got := Kind(Append(nil, m)); got != m.Type() {
			t.Errorf("Kind of %T: got %d, want %d", m, got, m.Type())
		}
	}
}

func TestHotDecodersDoNotAllocate(t *testing.T) {
	frame, ending := Append(nil, Return{Lease: 7, UsedNS: 8}), Append(nil, Ending{Lease: 7})
	n := testing.AllocsPerRun(100, func() {
		if Kind(frame) != MsgReturn || ReadReturn(frame).Lease != 7 || Kind(ending) != MsgEnding || ReadEnding(ending).Lease != 7 {
			t.Error("decoding: got another kind or lease than the encoded one, want MsgReturn and MsgEnding of lease 7")
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
				b.Fatal("decoding: got another kind or lease than the encoded one, want MsgReturn of lease 7")
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
