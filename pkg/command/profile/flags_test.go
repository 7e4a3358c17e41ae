package profile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/number"
)

func TestListFlag(t *testing.T) {
	var sm []float64
	flag := floats(&sm, 6, 12.5)
	if flag.String() != "6,12.5" {
		t.Errorf("standard %q", flag)
	}
	for text, want := range map[string][]float64{
		"24": {24}, "0.2,1": {0.2, 1}, " 6, 7 ": {6, 7}, "": nil,
	} {
		if err := flag.Set(text); err != nil || !slices.Equal(sm, want) {
			t.Errorf("%q: %v, %v; want %v", text, sm, err, want)
		}
	}
	for _, text := range []string{"a", "1,,2", "1;2", "1,"} {
		if err := flag.Set(text); err == nil {
			t.Errorf("%q was read as %v", text, sm)
		}
	}
	var batch []int
	if err := ints(&batch, 1).Set("1.5"); err == nil {
		t.Errorf("1.5 was read as %v", batch)
	}
}

// FuzzListFlag checks that a list flag accepts its own text form.
func FuzzListFlag(f *testing.F) {
	for _, s := range []string{"6,12,24", "", "0.2", "1e3,.5", "NaN", "1,,2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var first, second []float64
		if floats(&first).Set(text) != nil || slices.ContainsFunc(first, func(v float64) bool { return v != v }) {
			return
		}
		printed := (&list[float64]{&first, nil, number.Plain}).String()
		if err := floats(&second).Set(printed); err != nil || !slices.Equal(first, second) {
			t.Fatalf("%q read as %v, printed %q, read as %v, %v", text, first, printed, second, err)
		}
	})
}

func TestPercentage(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "5": 0.05, "0": 0, "12.5%": 0.125} {
		var v float64
		var set bool
		if err := (percentage{&v, &set}).Set(text); err != nil || v != want || !set {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "%", "-1%", "five", "NaN", "1001"} {
		var v float64
		var set bool
		if err := (percentage{&v, &set}).Set(text); err == nil || set {
			t.Errorf("%q is taken as %v", text, v)
		}
	}
}

func TestParseGPUs(t *testing.T) {
	for list, want := range map[string]string{
		"0": "[0]", "0, 2": "[0 2]", "sim:1": "[sim:1]",
		"0,00": "--gpu 0,00: 0 is given twice", "0,,1": "--gpu: ",
	} {
		names, err := parseGPUs(list)
		got := fmt.Sprint(names)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", list, got, want)
		}
	}
}
