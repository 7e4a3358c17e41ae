package trace

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestReadSeries(t *testing.T) {
	got, err := ReadSeries(strings.NewReader("rps,note,second\n2.5,x,12\n1,,10\n"), "s.csv")
	if want := (Series{Start: 10, RPS: []float64{1, 0, 2.5}, Lines: []int32{3, 0, 2}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestBadSeries(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "s.csv:1: the file is empty, expected the header second,rps",
		"second,rps\n":                  "s.csv:1: the file has only a header",
		"second\n1\n":                   "s.csv:1: rps: the header has no such column",
		"second,rps\n0.5,1\n":           `s.csv:2: second: "0.5" is not a whole number`,
		"second,rps\n-1,1\n":            `s.csv:2: second: "-1" is out of range`,
		"second,rps\n1,-1\n":            `s.csv:2: rps: "-1" is negative`,
		"second,rps\n1,NaN\n":           `s.csv:2: rps: "NaN" is not a number`,
		"second,rps\n1,1\n2\n":          "s.csv:3: rps: missing",
		"second,rps\n1,1\n2,1\n1,3\n":   `s.csv:4: second: "1" is on line 2 already`,
		"second,rps\n1e3,1\n":           `s.csv:2: second: "1e3" is not a whole number`,
		"second,rps\n99999999,1\n0,1\n": "s.csv:2: second: 99999999 is 99999999 seconds after the first",
	} {
		if _, err := ReadSeries(strings.NewReader(text), "s.csv"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// FuzzReadSeries checks that a series that is read, written and read again is
// the same.
func FuzzReadSeries(f *testing.F) {
	f.Add("second,rps\n0,1\n1,2.5\n")
	f.Add("rps,second\n1e3,7\n0,9\n")
	f.Add("second,rps\n1,\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ReadSeries(strings.NewReader(text), "s.csv")
		if err != nil || len(s.RPS) > 1000 {
			return
		}
		var out bytes.Buffer
		if err := s.WriteCSV(&out); err != nil {
			t.Fatal(err)
		}
		again, err := ReadSeries(&out, "again.csv")
		s.Lines, again.Lines = nil, nil
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Errorf("series after writing and reading: got %v, %v; want %v", again, err, s)
		}
	})
}
