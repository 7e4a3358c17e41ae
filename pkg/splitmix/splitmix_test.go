package splitmix

import (
	"math"
	"slices"
	"testing"
)

// TestSequence compares the generator with the widely quoted output of the published one
// for this seed.
func TestSequence(t *testing.T) {
	s := Source(1234567)
	var got []uint64
	for range 5 {
		got = append(got, s.Uint64())
	}
	want := []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821}
	if !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestRanges(t *testing.T) {
	s := Source(0)
	var seen [7]bool
	for range 1000 {
		if u := s.Unit(); u < 0 || u >= 1 {
			t.Fatalf("%v is no fraction, want at least 0 and less than 1", u)
		}
		seen[s.Below(len(seen))] = true
	}
	if slices.Contains(seen[:], false) {
		t.Errorf("of 1000 numbers below %d some never came: %v", len(seen), seen)
	}
}

func TestExponential(t *testing.T) {
	s := Source(1)
	const n = 100_000
	sum, late := 0.0, 0
	for range n {
		v := s.Exponential()
		if !(v >= 0 && v < 37) {
			t.Fatalf("%v is out of range", v)
		}
		sum += v
		if v > 2 {
			late++
		}
	}
	if mean, part := sum/n, float64(late)/n; math.Abs(mean-1) > 0.02 || math.Abs(part-math.Exp(-2)) > 0.005 {
		t.Errorf("mean %v, above 2 %v; want 1 and %v", mean, part, math.Exp(-2))
	}
}
