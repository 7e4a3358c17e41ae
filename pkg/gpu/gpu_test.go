package gpu

import (
	"testing"

	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1048576": MiB, "512B": 512, "1427MiB": 1427 * MiB, "16GiB": 16 * GiB, "1.5GiB": GiB + GiB/2, " 2 KiB ": 2 * KiB,
	} {
		got, err := ParseBytes(text)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "12MB", "NaN", "1e30", "Inf", "0x", "1 2"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d; want an error", text, got)
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
	for text, want := range map[string][2]float64{"0.4": {0.4, 0.4}, "0.3:0.8": {0.3, 0.8}, "1": {1, 1}} {
		request, limit, err := ParseQuota(text)
		if err != nil || request != want[0] || limit != want[1] {
			t.Errorf("ParseQuota(%q) = %v, %v, %v; want %v", text, request, limit, err, want)
		}
	}
	for _, text := range []string{"", ":", "0.3:", "a", "0.3:0.8:1"} {
		if _, _, err := ParseQuota(text); err == nil {
			t.Errorf("ParseQuota(%q) is no error", text)
		}
	}
}

func TestSliceValidate(t *testing.T) {
	good := Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: GiB}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
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
			t.Errorf("%+v passes", bad)
		}
	}
}

func TestNames(t *testing.T) {
	for i := range 3 {
		index, simulated, err := ParseName(SimName(i))
		if err != nil || index != i || !simulated {
			t.Errorf("ParseName(%s) = %d, %v, %v", SimName(i), index, simulated, err)
		}
	}
	if index, simulated, err := ParseName("2"); err != nil || index != 2 || simulated {
		t.Errorf("ParseName(2) = %d, %v, %v", index, simulated, err)
	}
	for _, bad := range []string{"", "-1", "simulated", "sim:", "sim:x", "0.5"} {
		if _, _, err := ParseName(bad); err == nil {
			t.Errorf("ParseName(%q) is no error", bad)
		}
	}
}
