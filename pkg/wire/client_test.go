package wire

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
)

func sample(t testing.TB) []Message {
	name, err := MakeName("resnet-0")
	if err != nil {
		t.Fatal(err)
	}
	return []Message{
		Hello{PID: 7, MemUsed: 1 << 30, Instance: name, Secret: name},
		Welcome{Slot: 3, NSlots: PageSlots, MemLimit: 1 << 33, WindowNS: 1e8},
		Refused{Reason: MakeReason("no such instance")},
		Request{}, LeaseEnd{Lease: 9}, Return{Lease: 9, Flags: ReturnWantsMore, UsedNS: 12345},
		UnmanagedProgram{Kind: ProgramStatic, Instance: name, Secret: name, Program: MakeReason("/bin/busybox")}, Noted{First: 1},
		Ending{Lease: 9, LeftNS: 250000}, Fault{Code: 700, Call: name}, Move{Number: 2, ToHost: 1}, Moved{Number: 2, Complete: 1},
	}
}

func TestRoundTrip(t *testing.T) {
	sizes := map[MsgType]int{MsgHello: 160, MsgWelcome: 40, MsgRefused: 144, MsgRequest: 16, MsgLeaseEnd: 24, MsgReturn: 32, MsgUnmanaged: 280, MsgNoted: 24, MsgEnding: 32, MsgFault: 88, MsgMove: 24, MsgMoved: 24}
	for _, m := range sample(t) {
		frame := Append(nil, m)
		if len(frame) != sizes[m.Type()] {
			t.Errorf("%T has %d bytes, want %d", m, len(frame), sizes[m.Type()])
		}
		got, err := Parse(frame)
		if err != nil || got != m {
			t.Errorf("round trip of %T: got %v, %v; want %v", m, got, err, m)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := Append(nil, Return{Lease: 1})
	bend := func(at int, b byte) []byte {
		out := bytes.Clone(good)
		out[at] = b
		return out
	}
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"empty", nil, "less than a header"},
		{"short", good[:15], "less than a header"},
		{"magic", bend(0, 'X'), "magic"},
		{"version", bend(6, 1), "version 1, expected 2"},
		{"size", bend(8, 33), "33 bytes according to the header"},
		{"cut", good[:31], "the record has 31"},
		{"type 0", bend(4, 0), "unknown type 0"},
		{"type 13", bend(4, 13), "unknown type 13"},
		{"other type", bend(4, byte(MsgHello)), "has a body of 16 bytes"},
		{"long", make([]byte, MaxMessage+1), "at most 512"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse(tt.frame)
			if m != nil || !errors.Is(err, errFrame) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, %v; want an error with %q", m, err, tt.want)
			}
		})
	}
}

// TestGrantFrame: a grant has its own reader, because it is longer than all other messages and of variable size.
func TestGrantFrame(t *testing.T) {
	long := strings.Repeat("g", MaxGrant)
	for _, text := range []string{"", "gfaas-grant-v1.a.b", long} {
		frame := AppendGrant(nil, text)
		if got, ok := ReadGrant(frame); !ok || got != text {
			t.Errorf("ReadGrant of %d bytes: got %d bytes, %v; want the same text", len(text), len(got), ok)
		}
		if m, err := Parse(frame); err == nil {
			t.Errorf("Parse of a grant: got %v, want an error, so that older daemons and newer ones agree", m)
		}
	}
	good := AppendGrant(nil, "text")
	for name, frame := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-1], "longer than its header says": append(bytes.Clone(good), 'x'),
		"another message": Append(nil, Request{}), "another version": append(append(bytes.Clone(good[:6]), 9, 0), good[8:]...),
	} {
		if got, ok := ReadGrant(frame); ok {
			t.Errorf("ReadGrant, %s: got %q, want false", name, got)
		}
	}
}

func TestMakeName(t *testing.T) {
	for _, bad := range []string{strings.Repeat("x", 64), "a\x00b"} {
		if _, err := MakeName(bad); err == nil {
			t.Errorf("MakeName(%q): got no error, want one", bad)
		}
	}
	long := strings.Repeat("x", 63)
	if n, err := MakeName(long); err != nil || n.String() != long {
		t.Errorf("MakeName of 63 bytes: got %q, %v; want %q", n, err, long)
	}
	if r := MakeReason(strings.Repeat("y", 500)); len(r.String()) != len(r)-1 {
		t.Errorf("MakeReason of 500 bytes: got %d bytes, want %d", len(r.String()), len(r)-1)
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range sample(f) {
		f.Add(Append(nil, m))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := Parse(frame)
		if text, ok := ReadGrant(frame); ok && !bytes.Equal(AppendGrant(nil, text)[:8], frame[:8]) {
			t.Fatalf("ReadGrant of %x: got %q, but its encoding differs", frame, text)
		}
		if kind := Kind(frame); (kind == 0) != (err != nil) || err == nil && kind != m.Type() {
			t.Fatalf("Kind of %x: got %d, but Parse returned %v, %v", frame, kind, m, err)
		}
		if err != nil {
			return
		}
		if r, ok := m.(Return); ok && ReadReturn(frame) != r {
			t.Fatalf("ReadReturn: got %+v, want %+v as from Parse", ReadReturn(frame), r)
		}
		if e, ok := m.(Ending); ok && ReadEnding(frame) != e {
			t.Fatalf("ReadEnding: got %+v, want %+v as from Parse", ReadEnding(frame), e)
		}
		again, err := Parse(Append(nil, m))
		if err != nil || again != m {
			t.Fatalf("round trip: got %v, %v; want %v", again, err, m)
		}
	})
}

func TestRegistrationValidate(t *testing.T) {
	good := Registration{
		Instance: "a.B-1_", Secret: "s",
		Allocation: Allocation{GPU: "sim", SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8},
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, bend := range map[string]func(*Registration){
		"instance empty":   func(r *Registration) { r.Instance = "" },
		"instance path":    func(r *Registration) { r.Instance = "../x" },
		"instance dots":    func(r *Registration) { r.Instance = ".." },
		"instance socket":  func(r *Registration) { r.Instance = "token.sock" },
		"instance long":    func(r *Registration) { r.Instance = strings.Repeat("a", 64) },
		"secret empty":     func(r *Registration) { r.Secret = "" },
		"secret long":      func(r *Registration) { r.Secret = strings.Repeat("s", 64) },
		"gpu":              func(r *Registration) { r.GPU = "nvidia" },
		"sm":               func(r *Registration) { r.SMPct = 101 },
		"sm limit":         func(r *Registration) { r.SMLimitPct = 23 },
		"sm limit high":    func(r *Registration) { r.SMLimitPct = 101 },
		"sm limit low":     func(r *Registration) { r.SMLimitPct = -1 },
		"sm limit NaN":     func(r *Registration) { r.SMLimitPct = math.NaN() },
		"quota":            func(r *Registration) { r.QuotaRequest = 0 },
		"limit":            func(r *Registration) { r.QuotaLimit = 0.1 },
		"memory negative":  func(r *Registration) { r.MemLimit = -1 },
		"owner negative":   func(r *Registration) { r.OwnerPID = -1 },
		"another kind":     func(r *Registration) { r.Kind = "inference" },
		"training in time": func(r *Registration) { r.Kind, r.SLOMS = "training", 50 },
		"slo negative":     func(r *Registration) { r.SLOMS = -1 },
		"slo too long":     func(r *Registration) { r.SLOMS = 1e300 },
	} {
		r := good
		bend(&r)
		if r.Validate() == nil {
			t.Errorf("%s: Validate of %+v: got no error, want one", name, r)
		}
	}
}
