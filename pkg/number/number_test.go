package number

import (
	"math"
	"testing"
)

func TestVanished(t *testing.T) {
	for text, want := range map[string]bool{"0": false, "0.000": false, "0e9": false, "0s": false, "1e-400": true, "0.1ns": true, "0.0000E5": false, "-2E-999": true} {
		if got := Vanished(text, 0); got != want {
			t.Errorf("%s read as 0 vanished: %v, want %v", text, got, want)
		}
	}
	if Vanished("1", 1) {
		t.Error("1 vanished")
	}
}

func TestPrint(t *testing.T) {
	for got, want := range map[string]string{
		Plain(0.4): "0.4", Plain(1e9): "1000000000", Plain(1e-7): "0.0000001", Plain(math.Inf(1)): "+Inf",
		Fixed(2, 1): "2.0", Fixed(0.125, 2): "0.12",
		Trimmed(2.04, 1): "2", Trimmed(2.06, 1): "2.1", Trimmed(1200, 0): "1200", Trimmed(0.1+0.2, 6): "0.3", Trimmed(100.0004, 3): "100",
		Significant(1234, 3): "1.23e+03", Significant(0.5, 3): "0.5",
		Short(12.000000001): "12", Short(0.1 + 0.2): "0.3", Short(1.0 / 3): "0.333", Short(100.0 / 3): "33.3", Short(0): "0", Short(0.00042): "0.00042",
		Short(999.9): "1000", Short(1234.4): "1234", Short(123456): "123456", Short(-2.345): "-2.35", Short(math.Inf(1)): "+Inf", Short(math.NaN()): "NaN",
		Metric(0.1234): "0.123", Metric(123.4): "123", Metric(999.4): "999", Metric(999.6): "1k", Metric(1234): "1.23k", Metric(999.6e3): "1M", Metric(4e6): "4M",
		Percent(0.345, 1): "34.5%", Percent(1, 0): "100%",
	} {
		if got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 1, 0.25: 1, 0.26: 2, 0.95: 4, 1: 4} {
		if got := Quantile([]float64{1, 2, 3, 4}, q); got != want {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if got := Quantile([]float64(nil), 0.5); got != 0 {
		t.Errorf("quantile of no values: got %v, want 0", got)
	}
}
