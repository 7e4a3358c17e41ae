package csvfile

import (
	"io"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/textfile"
)

type pair struct {
	name string
	n    float64
	note string
	line int
}

func read(text string) ([]pair, error) { return readFrom(strings.NewReader(text)) }

func readFrom(file io.Reader) ([]pair, error) {
	return Read(file, "f.csv", []Column[pair]{
		Required("name", Name, func(p *pair) *string { return &p.name }),
		Required("n", Positive, func(p *pair) *float64 { return &p.n }),
		{Name: "note", Set: func(p *pair, cell string) error { p.note = cell; return nil }},
	}, func(line int) pair { return pair{note: "none", line: line} })
}

func TestRead(t *testing.T) {
	for what, text := range map[string]string{
		"plain":           "name,n,note\na,1,x\nb,2.5,\n",
		"other order":     "extra,note,n,name\n,x,1,a\n9,,2.5,b\n",
		"CRLF and BOM":    "\uFEFFname,n,note\r\na,1,x\r\nb,2.5,\r\n",
		"quotes":          "\"name\",n,note\n\"a\",\"1\",x\n\"b\",2.5,\"\"\n",
		"spaces":          " name , n,note\na , 1 ,x\nb,2.5, \n",
		"no last newline": "name,n,note\na,1,x\nb,2.5,",
	} {
		t.Run(what, func(t *testing.T) {
			rows, err := read(text)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) != 2 || rows[0] != (pair{"a", 1, "x", 2}) || rows[1] != (pair{"b", 2.5, "none", 3}) {
				t.Errorf("got %+v, want {a 1 x} and {b 2.5 none}, the second one of line 3", rows)
			}
		})
	}
}

// TestNumberNeverVanishes: Number does not read a value other than 0 as 0.
func TestNumberNeverVanishes(t *testing.T) {
	for cell, want := range map[string]string{"0": "", "0.0e5": "", "1e-300": "", "1e-400": `"1e-400" is out of range, expected 0 or at least 1e-09`, "0.1e-999": "out of range"} {
		if _, err := Number(cell); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", cell, err, want)
		}
	}
}

func TestReadFaults(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"empty":          {"", "f.csv:1: the file is empty, expected the header name,n"},
		"blank":          {"\n\n", "f.csv:1: the file is empty"},
		"old Mac":        {"name,n,note\ra,1,x\r", "f.csv:1: lines end in a carriage return alone"},
		"binary":         {"\x00\x01\x02", "f.csv:1: not a text file"},
		"not UTF-8":      {"name,n\na\xff,1\n", "f.csv:1: not a text file"},
		"JSON":           {`{"name": "a", "n": 1}`, "f.csv:1: the file is JSON, expected CSV"},
		"JSON lines":     {"\uFEFF\n{\"name\":\"a\",\"n\":1}\n{\"name\":\"b\",\"n\":2}\n", "f.csv:1: the file is JSON, expected CSV"},
		"JSON list":      {"[\n {\"name\": 1}]\n", "f.csv:1: the file is JSON, expected CSV"},
		"semicolons":     {"name;n;note\na;1;x\n", "f.csv:1: there are semicolons or tabs between the cells, expected commas"},
		"tabs":           {"name\tn\na\t1\n", "f.csv:1: there are semicolons or tabs between the cells, expected commas"},
		"other case":     {"Name,N\na,1\n", `f.csv:1: name: the header has no such column but "Name", expected name,n`},
		"no column":      {"name,note\na,1\n", "f.csv:1: n: the header has no such column, expected name,n"},
		"column twice":   {"name,n,n\na,1,2\n", "f.csv:1: n: the header has this column twice"},
		"short":          {"name,n,note\na\n", "f.csv:2: n: missing: the line has 1 of 3 fields"},
		"long":           {"name,n\na,1,2\n", "f.csv:2: the line has 3 fields, expected 2"},
		"empty cell":     {"name,n\n,1\n", "f.csv:2: name: the cell is empty"},
		"not a number":   {"name,n\na,1\n\nb,x\n", `f.csv:4: n: "x" is not a number, expected one like 12.5`},
		"NaN":            {"name,n\na,NaN\n", `f.csv:2: n: "NaN" is not a number`},
		"infinite":       {"name,n\na,Inf\n", `"Inf" is not a number`},
		"hex":            {"name,n\na,0x10\n", `"0x10" is not a number`},
		"huge":           {"name,n\na,1e300\n", `"1e300" is out of range`},
		"overflow":       {"name,n\na,1e999\n", `"1e999" is out of range`},
		"zero":           {"name,n\na,0\n", `f.csv:2: n: "0" is out of range, expected more than 0`},
		"negative":       {"name,n\na,-1\n", `"-1" is out of range`},
		"quote inside":   {"name,n\na\"b,1\n", "f.csv:2: name: a quote inside a field"},
		"quote open":     {"name,n\na,1\nb,\"2\nc,3\n", "f.csv:3: n: a quoted field that does not end"},
		"after quote":    {"name,n\n\"a\"b,3\n", "f.csv:2: name: a quoted field that does not end"},
		"unprintable":    {"name,n\na\x01b,3\n", "f.csv:2: name: "},
		"over two lines": {"name,note,n\na,\"x\ny\",0\n", "f.csv:3: n: "},
		"long name":      {"name,n\n" + strings.Repeat("a", 300) + ",1\n", "f.csv:2: name: \"aaa"},
		"long line":      {"name,n\na,1\n" + strings.Repeat("a", 20<<20) + ",1\n", "f.csv:3: the line has more than 16777216 bytes, expected at most that"},
		"long header":    {strings.Repeat("a", 20<<20), "f.csv:1: the line has"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := read(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
				t.Errorf("got %.300v\nwant %s", err, c.want)
			}
		})
	}
}

func TestUniqueNamesBothLines(t *testing.T) {
	rows, err := read("name,n\na,1\nb,1\na,2\n")
	if err != nil {
		t.Fatal(err)
	}
	err = Unique(rows, "f.csv", "name", func(p pair) (string, int) { return p.name, p.line })
	if want := `f.csv:4: name: "a" is on line 2 already, expected each only once`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCells(t *testing.T) {
	for _, c := range []struct {
		what  string
		parse func(string) (float64, error)
		cell  string
		ok    bool
	}{
		{"percent", Percent, "100", true}, {"percent", Percent, "100.1", false}, {"percent", Percent, "0", false},
		{"percent", Percent, "0.00001", false}, {"fraction", Fraction, "1", true}, {"fraction", Fraction, "1.01", false},
		{"fraction", Fraction, "-0.5", false}, {"number", Number, "0", true}, {"number", Number, "-1", false},
		{"number", Number, "1e3", true}, {"number", Number, "1_0", false}, {"number", Number, "", false},
	} {
		if _, err := c.parse(c.cell); (err == nil) != c.ok {
			t.Errorf("%s %q: got %v, want valid %v", c.what, c.cell, err, c.ok)
		}
	}
	for cell, ok := range map[string]bool{"1": true, "0": false, "-3": false, "1.5": false, "99999999999999999999": false, "x": false} {
		if _, err := Count(cell, 1); (err == nil) != ok {
			t.Errorf("count %q: got %v, want valid %v", cell, err, ok)
		}
	}
}

// TestSlipsAreNoted: a column whose name resembles that of a missing column is ignored
// with a note.
func TestSlipsAreNoted(t *testing.T) {
	for header, want := range map[string]string{
		"name,n,nota":      `f.csv:1: "nota": not a column of this file, so it is ignored: note?`,
		"name,n,NOTE":      `f.csv:1: "NOTE": not a column of this file, so it is ignored: note?`,
		"name,n,note,nota": "", // the column note exists
		"name,n,remark":    "",
		"name,n,notes":     `f.csv:1: "notes": not a column of this file, so it is ignored: note?`,
		"name,n,note,n_of": `f.csv:1: "n_of": not a column of this file, so it is ignored`,
		"name,n,note":      "",
	} {
		var notes, always []string
		file := textfile.Noting(strings.NewReader(header+"\n"), func(text string) { notes = append(notes, text) }, func(text string) { always = append(always, text) })
		wantNotes, wantAlways := want, ""
		if strings.HasSuffix(want, "?") { // the note suggests a name
			wantNotes, wantAlways = "", want
		}
		if _, err := readFrom(file); err != nil || strings.Join(notes, "; ") != wantNotes || strings.Join(always, "; ") != wantAlways {
			t.Errorf("%s: notes %q, notes even under --quiet %q, %v; want %q", header, notes, always, err, want)
		}
	}
}
