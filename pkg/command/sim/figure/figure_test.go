package figure

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

const header = "id,figure,quantity,unit,theirs,ours,tolerance,reason\n"

const example = header +
	"a,fig. 1,latency,ms,about 50,40,5%,The GPU differs.\n" +
	"b,fig. 1,\"latency | p95, of a <b>\",ms,,400.25,0.5%,\n" +
	"c,fig. 2,saving,%,-30 to -20,-25,10%,\n"

func read(t *testing.T, text string) []Row {
	t.Helper()
	rows, err := Read(strings.NewReader(text), "expected.csv")
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestRoundTrip checks that Write writes what Read has read.
func TestRoundTrip(t *testing.T) {
	var out bytes.Buffer
	if err := Write(&out, read(t, example)); err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(example, "400.25", "400.2", 1); out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestMoved(t *testing.T) {
	for _, c := range []struct {
		expected, tolerance, ours float64
		want                      bool
	}{
		{100, 0.05, 105, false}, {100, 0.05, 95, false}, {100, 0.05, 105.1, true}, {100, 0.05, 94.9, true},
		{-100, 0.05, -105, false}, {-100, 0.05, 100, true}, {0, 0.05, 0, false}, {0, 0.05, 0.01, true},
		{0.3333, 0, 1.0 / 3, false},
	} {
		if got := (Row{Expected: c.expected, Tolerance: c.tolerance, Ours: c.ours}).Moved(); got != c.want {
			t.Errorf("%v instead of %v with a tolerance of %v: got moved %v, want %v", c.ours, c.expected, c.tolerance, got, c.want)
		}
	}
}

func TestPublished(t *testing.T) {
	for _, c := range []struct {
		cell       string
		value      float64
		difference float64
	}{
		{"4", 4, 0}, {"4", 5, 0.25}, {"about 4", 3, 0.25}, {"-20", -30, 0.5}, {"8 to 20", 10, 0}, {"8 to 20", 4, 0.5}, {"8 to 20", 30, 0.5},
		{"-30 to -20", -25, 0}, {"more than 2", 9, 0}, {"more than 2", 1, 0.5}, {"up to 96", 92, 0}, {"less than 10", 11, 0.1}, {"0", 1, math.Inf(1)},
	} {
		p, err := ParsePublished(c.cell)
		if err != nil {
			t.Errorf("%s: %v", c.cell, err)
			continue
		}
		if got := p.Difference(c.value); math.Abs(got-c.difference) > 1e-9 && got != c.difference {
			t.Errorf("difference of %v from %q: got %v, want %v", c.value, c.cell, got, c.difference)
		}
	}
	for _, cell := range []string{"many", "2 to", "3 to 2", "about 2 to 3", "more than", "4x"} {
		if _, err := ParsePublished(cell); err == nil {
			t.Errorf("%q: got no error, want one", cell)
		}
	}
}

func TestMatch(t *testing.T) {
	rows := read(t, example)
	results, err := ReadResults(strings.NewReader("id,value\na,41\nc,-20\nd,1\n"), "results.csv")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Match(rows, results, "results.csv")
	if want := "results.csv has no result for \"b\"\nresults.csv:4: id: \"d\" is not expected"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	matched, err := Match(rows[:1], results[:1], "results.csv")
	if err != nil || matched[0].Ours != 41 || matched[0].Expected != 40 || matched[0].Moved() {
		t.Errorf("got %+v, %v; want 41, expected 40, not moved", matched, err)
	}
}

func TestMarkdown(t *testing.T) {
	want := `| figure | quantity | theirs | ours | reason for a difference |
|---|---|---|---|---|
| fig. 1 | latency | about 50 ms | 40 ms | The GPU differs. |
| … | latency \| p95, of a <b> | – | 400 ms | |
| fig. 2 | saving | −30 to −20% | −25% | |
`
	if got := Markdown(read(t, example)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestExplained checks which rows need a reason.
func TestExplained(t *testing.T) {
	for text, want := range map[string]bool{"a,f,q,,50,40,5%,\n": false, "a,f,q,,50,40,5%,why\n": true, "a,f,q,,50,46,5%,\n": true, "a,f,q,,,46,5%,\n": true} {
		if got := read(t, header+text)[0].Explained(); got != want {
			t.Errorf("%q: got explained %v, want %v", text, got, want)
		}
	}
}

// TestSVG checks that the picture is XML, has one axis for each run of equal units and a mark for
// each end of a published figure, and contains no value that is not a number.
func TestSVG(t *testing.T) {
	for name, c := range map[string]struct {
		rows  string
		marks int
	}{
		"example":     {example, 3},
		"logarithmic": {header + "a,f,q,s,0.02,0.01,5%,\nb,f,q,s,,500,5%,\n", 1},
		"zero":        {header + "a,f,q,,,0,5%,\n", 0},
		"negative":    {header + "a,f,q,,,-5,5%,\nb,f,q,,less than -2,-4,5%,\n", 1},
	} {
		picture := SVG("title <1>", read(t, c.rows))
		for decoder := xml.NewDecoder(strings.NewReader(picture)); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if got := strings.Count(picture, `fill="`+theirsColour) - 1; got != c.marks { // one is in the legend
			t.Errorf("%s: got %d marks, want %d", name, got, c.marks)
		}
		if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") {
			t.Errorf("%s: got a picture with NaN or Inf", name)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(example)
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := Read(strings.NewReader(text), "expected.csv")
		if err != nil {
			return
		}
		Markdown(rows)
		SVG("", rows)
	})
}
