package profile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// mixed has rows of f on two GPU models, of g on one, and of h and one slice of f without
// a model.
var mixed = []Row{
	{Function: "f", GPU: "V100", Config: Config{50, 1, 1}, ThroughputRPS: 10},
	{Function: "f", GPU: "A100", Config: Config{50, 1, 1}, ThroughputRPS: 100},
	{Function: "f", GPU: "V100", Config: Config{25, 1, 1}, ThroughputRPS: 5},
	{Function: "f", Config: Config{25, 1, 1}, ThroughputRPS: 7},
	{Function: "g", GPU: "A100", Config: Config{50, 1, 1}, ThroughputRPS: 50},
	{Function: "h", Config: Config{50, 1, 1}, ThroughputRPS: 30},
	{Function: "same", GPU: "V100", Config: Config{50, 1, 1}, ThroughputRPS: 3, Line: 8},
	{Function: "same", GPU: "A100", Config: Config{50, 1, 1}, ThroughputRPS: 3, Line: 9},
}

func rates(rows []Row) string {
	var out []string
	for _, r := range rows {
		out = append(out, fmt.Sprintf("%s:%v", r.Function, r.ThroughputRPS))
	}
	return strings.Join(out, " ")
}

// TestOn checks that for a known GPU model, On returns at most one row for each
// configuration of a function, and prefers a row of the model to a row without one.
func TestOn(t *testing.T) {
	for model, want := range map[string]string{
		"V100": "f:10 f:5 h:30 same:3",
		"A100": "f:100 f:7 g:50 h:30 same:3",
		"T4":   "f:7 h:30",
		"":     "f:10 f:100 f:5 f:7 g:50 h:30 same:3 same:3",
	} {
		if got := rates(On(mixed, model)); got != want {
			t.Errorf("on %q: %s, want %s", model, got, want)
		}
		if got := rates(On(SplitByModel(mixed, []string{"", "A100", "T4", "V100"}), model)); model != "" && got != want {
			t.Errorf("apart, on %q: %s, want %s", model, got, want)
		}
	}
}

// TestApart checks that exactly one row of each configuration applies to each GPU model.
func TestApart(t *testing.T) {
	seen := map[string]int{}
	for _, r := range SplitByModel(mixed, []string{"A100", "T4", "V100"}) {
		for _, model := range []string{"A100", "T4", "V100"} {
			if r.GPU == "" || r.GPU == model {
				seen[fmt.Sprintf("%s %v on %s", r.Function, r.Config, model)]++
			}
		}
	}
	for at, n := range seen {
		if n != 1 {
			t.Errorf("rows that apply to %s: got %d, want 1", at, n)
		}
	}
	if want := 2 + 3 + 1 + 3 + 2; len(seen) != want {
		t.Errorf("configurations on GPU models: got %d, want %d: %v", len(seen), want, seen)
	}
}

func TestFind(t *testing.T) {
	x := NewIndex(mixed)
	for _, c := range []struct {
		function, model string
		sm              float64
		rps             float64 // 0 if there is no row
		models          string  // the models on which the answer depends
	}{
		{"f", "V100", 50, 10, ""},
		{"f", "A100", 50, 100, ""},
		{"f", "T4", 50, 0, ""},
		{"f", "", 50, 0, `"A100", "V100"`},
		{"f", "V100", 25, 5, ""},
		{"f", "A100", 25, 7, ""},
		{"f", "", 25, 0, `"V100"`},
		{"g", "", 50, 50, ""},
		{"g", "V100", 50, 0, ""},
		{"h", "V100", 50, 30, ""},
		{"same", "", 50, 3, ""},
		{"none", "", 50, 0, ""},
	} {
		r, found, err := x.Find(c.function, Config{c.sm, 1, 1}, c.model)
		var ambiguous *AmbiguousError
		if got := errors.As(err, &ambiguous); got != (c.models != "") || got && Quoted(ambiguous.Models) != c.models {
			t.Errorf("%+v: got error %v, want ambiguous models %q", c, err, c.models)
		}
		if r.ThroughputRPS != c.rps || found != (c.rps > 0) {
			t.Errorf("%+v: got %v rps, found %v; want %v rps, found %v", c, r.ThroughputRPS, found, c.rps, c.rps > 0)
		}
	}
}

func TestDiffer(t *testing.T) {
	for want, rows := range map[bool][][]Row{
		false: {nil, mixed[6:], mixed[5:], mixed[4:5], mixed[:1]},
		true:  {mixed, mixed[:2], mixed[2:5], mixed[4:]},
	} {
		for _, some := range rows {
			if Differ(some) != want {
				t.Errorf("rates %s: got differ %v, want %v", rates(some), !want, want)
			}
		}
	}
}

func TestLacking(t *testing.T) {
	for model, want := range map[string]string{"V100": `[{g [A100]}]`, "A100": `[]`, "T4": `[{g [A100]} {same [A100 V100]}]`, "": `[]`} {
		if got := fmt.Sprint(Lacking(mixed, model)); got != want {
			t.Errorf("on %q: %s, want %s", model, got, want)
		}
	}
}
