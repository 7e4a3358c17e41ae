package gpu

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1048576": MiB, "512B": 512, "1427MiB": 1427 * MiB, "16GiB": 16 * GiB, "1.5GiB": GiB + GiB/2, " 2 KiB ": 2 * KiB,
		"16G": 16 * GiB, "16GB": 16 * GiB, "512m": 512 * MiB, "1g": GiB, "12MB": 12 * MiB, "2t": 2048 * GiB, "1.5 gb": GiB + GiB/2, "7k": 7 * KiB, "8b": 8,
	} {
		got, err := ParseBytes(text)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"99999999TiB", "1e30", "1e999", "9223372036854775808"} {
		if _, err := ParseBytes(text); !errors.Is(err, ErrTooLarge) {
			t.Errorf("ParseBytes(%q): %v; want that it is too large", text, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "12MBB", "12iB", "16X", "G", "infm", "12MKB", "NaN", "1e30", "Inf", "0x", "1 2", "0.4", "1e-9", "1e-9MiB", "1e-12GiB", "1e-400GiB"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d; want an error", text, got)
		}
	}
}

// TestWholeBytes checks that parts that sum to a whole also do so in whole bytes, in any unit.
func TestWholeBytes(t *testing.T) {
	for _, c := range []struct {
		part  string
		mib   float64
		count Bytes
		whole Bytes
	}{
		{"0.1MiB", 0.1, 10, MiB}, {"204.8MiB", 204.8, 5, GiB}, {"0.333333333333MiB", 1. / 3, 3, MiB}, {"0.7MiB", 0.7, 10, 7 * MiB}, {"1427MiB", 1427, 2, 2854 * MiB},
		{"0.2GiB", 204.8, 5, GiB}, {"0.3k", 0.3 / 1024, 10, 3 * KiB}, {"0.30000000000000004MiB", 0.1 + 0.2, 10, 3 * MiB},
	} {
		parsed, err := ParseBytes(c.part)
		for what, part := range map[string]Bytes{"ParseBytes": parsed, "FromMiB": FromMiB(c.mib)} {
			if err != nil || part*c.count > c.whole || (part+1)*c.count <= c.whole {
				t.Errorf("%s of %s: got %d bytes, %v; want the most of which %d fit into %d bytes", what, c.part, part, err, c.count, c.whole)
			}
		}
	}
	for _, b := range []Bytes{0, 1, 12345, MiB - 1, 80*GiB + 1, 1<<50 - 1} {
		if got := FromMiB(b.MiB()); got != b {
			t.Errorf("FromMiB of %v MiB: got %d bytes, want %d", b.MiB(), got, b)
		}
	}
}

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1MiB": MiB, "1048576": MiB, "1.5GiB": GiB + GiB/2} {
		if got, err := ParseMemory(text); err != nil || got != want {
			t.Errorf("ParseMemory(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"5", "16", "1048575", "1023KiB", "0.5MiB", "1e-9", "-1", "", "1e30"} {
		if got, err := ParseMemory(text); err == nil {
			t.Errorf("ParseMemory(%q) = %d; want an error", text, got)
		}
	}
}

// TestFromMiB checks that a size above 0 becomes neither negative nor 0, which means no limit.
func TestFromMiB(t *testing.T) {
	for mib, want := range map[float64]Bytes{0: 0, 1: MiB, 0.5: MiB / 2, 1e-9: 1, 1e-300: 1, 1e12: 1e12 * MiB, 1 << 43: math.MaxInt64, 1e13: math.MaxInt64, 1e300: math.MaxInt64, -5: 0} {
		if got := FromMiB(mib); got != want {
			t.Errorf("FromMiB(%v) = %d; want %d", mib, got, want)
		}
	}
}

func TestBytesPrintAndParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "bytes"))
		got, err := ParseBytes(want.String())
		if err != nil || got != want {
			t.Fatalf("%d prints as %s, which reads as %d, %v", want, want, got, err)
		}
	})
}

func TestParseQuota(t *testing.T) {
	for text, want := range map[string][2]float64{"0.4": {0.4, 0.4}, "0.3:0.8": {0.3, 0.8}, "1": {1, 1}, "50%": {0.5, 0.5}, "25%:0.75": {0.25, 0.75}} {
		request, limit, err := ParseQuota(text)
		if err != nil || request != want[0] || limit != want[1] {
			t.Errorf("ParseQuota(%q) = %v, %v, %v; want %v", text, request, limit, err, want)
		}
	}
	for _, text := range []string{"", ":", "0.3:", "a", "0.3:0.8:1", "%", "50%%"} {
		if _, _, err := ParseQuota(text); err == nil {
			t.Errorf("ParseQuota(%q): got no error, want one", text)
		}
	}
}

func TestSliceValidate(t *testing.T) {
	good := Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: GiB}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate of %+v: got the error %v, want none", good, err)
	}
	nan := 0.0
	nan /= nan
	for _, bad := range []Slice{
		{SMPct: 0, QuotaRequest: 1, QuotaLimit: 1}, {SMPct: 101, QuotaRequest: 1, QuotaLimit: 1},
		{SMPct: nan, QuotaRequest: 1, QuotaLimit: 1}, {SMPct: 1, QuotaRequest: nan, QuotaLimit: 1},
		{SMPct: 1, QuotaRequest: 0, QuotaLimit: 1}, {SMPct: 1, QuotaRequest: 0.5, QuotaLimit: 1.5},
		{SMPct: 1, QuotaRequest: 0.5, QuotaLimit: 0.4}, {SMPct: 1, QuotaRequest: 1, QuotaLimit: 1, Mem: -1},
	} {
		if bad.Validate() == nil {
			t.Errorf("Validate of %+v: got no error, want one", bad)
		}
	}
}

func TestDevice(t *testing.T) {
	const mig = "MIG-41b4f8a8-9f1e-5bb5-8ed4-b1a4d1d2b8a0"
	for name, want := range map[string]struct {
		d             Device
		name, visible string
	}{
		"0":     {Device{}, "0", "0"},
		"02":    {Device{Index: 2}, "2", "2"},
		"sim":   {Device{Simulated: true}, "sim", "0"},
		"sim:0": {Device{Simulated: true}, "sim", "0"},
		"sim:3": {Device{Index: 3, Simulated: true}, "sim:3", "3"},
		mig:     {Device{MIG: mig}, mig, mig},

		"MIG-41B4F8A8-9F1E-5bb5-8ed4-b1a4d1d2b8a0": {Device{MIG: mig}, mig, mig},
	} {
		d, err := ParseDevice(name)
		if err != nil || d != want.d || d.String() != want.name || d.Visible() != want.visible {
			t.Errorf("%s: %+v (%s, visible as %s), %v, want %+v", name, d, d, d.Visible(), err, want)
		}
	}
	for _, bad := range []string{"", "-1", "x", "sim:", "sim:-1", "sim:x", "simx", "MIG-1", "MIG-GPU-1/0/0", mig + "0"} {
		if d, err := ParseDevice(bad); err == nil {
			t.Errorf("%q is %+v, want an error", bad, d)
		}
	}
}
