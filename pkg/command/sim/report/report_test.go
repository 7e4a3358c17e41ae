package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/sim"
)

// results are those of n policies with m functions; the k-th is k times as
// slow.
func results(n, m int) []*sim.Result {
	var out []*sim.Result
	for i := range n {
		r := &sim.Result{Policy: fmt.Sprint("policy-", i)}
		for _, q := range Quantiles() {
			r.Curve = append(r.Curve, q*100*float64(i+1))
		}
		for k := range m {
			r.Functions = append(r.Functions, sim.FunctionResult{Function: fmt.Sprintf("f%d<&\"", k), Invocations: int64(k), MeanMS: float64(i * k)})
		}
		out = append(out, r)
	}
	return out
}

func draw(t *testing.T, r []*sim.Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := HTML(&out, Comparison{Setting: "a <setting>", Results: r}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestPage: the page is well formed, needs nothing from elsewhere, shows every
// policy and says what it leaves out.
func TestPage(t *testing.T) {
	for _, c := range []struct{ policies, functions int }{{1, 1}, {2, 0}, {3, 30}, {20, 3}} {
		text := draw(t, results(c.policies, c.functions))
		if text != draw(t, results(c.policies, c.functions)) {
			t.Errorf("%v: two drawings differ", c)
		}
		for _, other := range []string{"http:", "https:", "src=", "<script", "@import", "NaN", "Inf"} {
			if strings.Contains(text, other) {
				t.Errorf("%v: the page has %s", c, other)
			}
		}
		if n := strings.Count(text, "<polyline"); n != c.policies {
			t.Errorf("%v: %d curves", c, n)
		}
		if left := strings.Contains(text, "6 more are not shown"); left != (c.functions == 30) {
			t.Errorf("%v: left out: %v", c, left)
		}
		wellFormed(t, text)
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestNothing: invocations that took no time, or none at all, have an axis.
func TestNothing(t *testing.T) {
	wellFormed(t, draw(t, []*sim.Result{{Policy: "fcfs"}}))
	wellFormed(t, draw(t, []*sim.Result{{Policy: "fcfs", Curve: make([]float64, len(Quantiles()))}}))
}

func TestHuman(t *testing.T) {
	for ms, want := range map[float64]string{0: "0 ms", 1: "1 ms", 99.94: "99.9 ms", 250.4: "250 ms", 1000: "1 s", 12340: "12.3 s", 123456: "123 s"} {
		if got := human(ms); got != want {
			t.Errorf("%g ms: %s, want %s", ms, got, want)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		axis axis
		want []float64
	}{
		{axis{1, 10}, []float64{1, 2, 5, 10}},
		{axis{0.3, 100}, []float64{0.5, 1, 2, 5, 10, 20, 50, 100}},
		{axis{0.1, 5000}, []float64{0.1, 1, 10, 100, 1000}},
	} {
		got := c.axis.ticks()
		if len(got) != len(c.want) {
			t.Errorf("%v: got %v, want %v", c.axis, got, c.want)
			continue
		}
		for i := range got {
			if math.Abs(got[i]/c.want[i]-1) > 1e-9 {
				t.Errorf("%v: got %v, want %v", c.axis, got, c.want)
			}
		}
	}
}
