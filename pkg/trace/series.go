package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// MaxSeconds is the longest a series may be: about 115 days.
const MaxSeconds = 10_000_000

// Series is a load: requests a second, one value for each second from Start.
type Series struct {
	Start int64 // second of the first value
	RPS   []float64
	Lines []int32 // of the file it came from, of each value; 0 is of none
}

// point is a line of a series.
type point struct {
	second int64
	rps    float64
}

// ReadSeries reads a series (CSV: second,rps); name is what messages call it.
// Seconds are whole, in any order; one that is not there had no requests.
func ReadSeries(r io.Reader, name string) (Series, error) {
	rows, err := csvfile.ReadWritten(r, name, []csvfile.Column[point]{
		{Name: "second", Required: true, Set: func(p *point, cell string) (err error) {
			p.second, err = csvfile.Count(cell, 0)
			return err
		}},
		{Name: "rps", Required: true, Set: func(p *point, cell string) (err error) {
			p.rps, err = csvfile.Number(cell)
			return err
		}},
	}, func() point { return point{} })
	if err != nil {
		return Series{}, err
	}
	if len(rows) == 0 {
		return Series{}, &textfile.Fault{File: name, Line: 1, What: "the file has a header only, expected at least one line"}
	}
	key := func(p point) string { return strconv.FormatInt(p.second, 10) }
	if err := csvfile.Unique(rows, name, "second", key); err != nil {
		return Series{}, err
	}
	slices.SortFunc(rows, func(a, b csvfile.Row[point]) int { return cmp.Compare(a.Value.second, b.Value.second) })
	first, last := rows[0].Value.second, rows[len(rows)-1]
	if last.Value.second-first >= MaxSeconds {
		return Series{}, &textfile.Fault{File: name, Line: last.Line, Where: "second",
			What: fmt.Sprintf("%d is %d seconds after the first, expected less than %d", last.Value.second, last.Value.second-first, MaxSeconds)}
	}
	s := Series{Start: first, RPS: make([]float64, last.Value.second-first+1)}
	s.Lines = make([]int32, len(s.RPS))
	for _, row := range rows {
		s.RPS[row.Value.second-first], s.Lines[row.Value.second-first] = row.Value.rps, int32(row.Line)
	}
	return s, nil
}

// WriteCSV writes the series in the form that ReadSeries reads.
func (s Series) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "second,rps")
	for i, v := range s.RPS {
		fmt.Fprintf(out, "%d,%s\n", s.Start+int64(i), csvfile.Format(v))
	}
	return out.Flush()
}
