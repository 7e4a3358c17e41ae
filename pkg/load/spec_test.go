package load

import (
	"strings"
	"testing"
)

func TestParseSpec(t *testing.T) {
	good := map[string]Spec{
		"closed:8":     {Kind: Closed, Workers: 8},
		"poisson:12.5": {Kind: Poisson, RPS: 12.5},
		"max":          {Kind: Max},
	}
	for text, want := range good {
		got, err := ParseSpec(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("ParseSpec(%q): got %+v (%q), %v; want %+v (%q)", text, got, got, err, want, text)
		}
	}
	for _, text := range []string{
		"", "closed", "closed:", "closed:0", "closed:-1", "closed:1.5", "closed:10001", "closed:8:8",
		"poisson", "poisson:", "poisson:0", "poisson:-3", "poisson:NaN", "poisson:Inf", "poisson:1e7",
		"max:3", "open:4", " max",
	} {
		if got, err := ParseSpec(text); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("ParseSpec(%q): got %+v, %v; want an error with \"expected\"", text, got, err)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"closed:8", "poisson:1e-3", "max", "closed:", "poisson:0x1p-2", "a:b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := ParseSpec(text)
		if err != nil {
			return
		}
		again, err := ParseSpec(spec.String())
		if err != nil || again != spec {
			t.Fatalf("%q parsed to %+v, printed as %q: got %+v, %v when parsed again, want the same", text, spec, spec, again, err)
		}
	})
}
