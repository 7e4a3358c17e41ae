package queue

import "testing"

func TestUnit(t *testing.T) {
	for _, c := range []struct {
		weights []float64
		want    unit
	}{
		{[]float64{1, 2, 0.5}, 2}, {[]float64{1, 1}, 1}, {[]float64{3, 0.3, 0.7}, 21}, {[]float64{0.1, 0.02}, 1}, {[]float64{1.25, 2.5}, 5},
		{[]float64{1e12, 3}, 0}, {[]float64{1.0 / 3}, 0}, {[]float64{1e-9}, 1}, {[]float64{999983, 999979}, 999983 * 999979}, {[]float64{999983, 999979, 999961}, 0}, {nil, 1},
	} {
		got := unit(1)
		for _, w := range c.weights {
			got = got.withWeight(w)
		}
		if got != c.want {
			t.Errorf("unit of the weights %v: got %v, want %v", c.weights, got, c.want)
		}
	}
}

// TestSumsOverWeightsAreExact checks that three thirds are equal to a whole.
func TestSumsOverWeightsAreExact(t *testing.T) {
	u := unit(1).withWeight(3).withWeight(0.7)
	thirds, sevenths := 0.0, 0.0
	for range 30_000 {
		thirds += u.perWeight(10_000_001, 3)
	}
	for range 7_000 {
		sevenths += u.perWeight(10_000_001, 0.7)
	}
	if want := u.fromNS(10_000 * 10_000_001); thirds != want || sevenths != want {
		t.Errorf("sums by the weights 3 and 0.7: got %v and %v, want %v", thirds, sevenths, want)
	}
}
