package wire

import (
	"bytes"
	"testing"
)

// TestHotIsGeneric holds what is printed and read by hand to what reflection
// makes of the same messages.
func TestHotIsGeneric(t *testing.T) {
	for _, m := range []interface {
		Message
		Append([]byte) []byte
	}{
		Request{}, LeaseEnd{}, LeaseEnd{Lease: 1<<32 - 2, Reserved: 7}, Return{},
		Return{Lease: 0x01020304, Flags: ReturnWantsMore, UsedNS: 0x1122334455667788},
	} {
		want := Append([]byte("before"), m)
		if got := m.Append([]byte("before")); !bytes.Equal(got, want) {
			t.Errorf("%+v is printed as %x, want %x", m, got, want)
		}
		if r, ok := m.(Return); ok && ReadReturn(Append(nil, m)) != r {
			t.Errorf("%+v is read as %+v", r, ReadReturn(Append(nil, m)))
		}
	}
	for _, m := range sample(t) {
		if got := Kind(Append(nil, m)); got != m.Type() {
			t.Errorf("%T is of kind %d", m, got)
		}
	}
}

func TestHotAllocatesNothing(t *testing.T) {
	buf, frame := make([]byte, 0, MaxMessage), Return{Lease: 7, UsedNS: 8}.Append(nil)
	n := testing.AllocsPerRun(100, func() {
		buf = LeaseEnd{Lease: 9}.Append(buf[:0])
		buf = Request{}.Append(buf[:0])
		if Kind(frame) == MsgReturn {
			buf = ReadReturn(frame).Append(buf[:0])
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReadReturn(b *testing.B) {
	frame := Return{Lease: 7, UsedNS: 8}.Append(nil)
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
