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

// MaxSeconds is the limit on the length of a series, in seconds: about 115 days.
const MaxSeconds = 10_000_000

// Series is a load: requests per second, one value for each second from Start.
type Series struct {
	Start int64 // second of the first value
	RPS   []float64
	Lines []int32 // line of each value in its file; 0 if none
}

// point is a line of a series.
type point struct {
	second int64
	rps    float64
	line   int
}

// ReadSeries reads a series (CSV: second,rps); name is the file's name in messages. Seconds
// are integers in any order; a missing second means no requests.
func ReadSeries(r io.Reader, name string) (Series, error) {
	rows, err := csvfile.ReadWritten(r, name, []csvfile.Column[point]{
		csvfile.Required("second", csvfile.AtLeast[int64](0), func(p *point) *int64 { return &p.second }),
		csvfile.Required("rps", csvfile.Number, func(p *point) *float64 { return &p.rps }),
	}, func(line int) point { return point{line: line} })
	if err != nil {
		return Series{}, err
	}
	if len(rows) == 0 {
		return Series{}, &textfile.Fault{File: name, Line: 1, What: "the file has only a header, expected at least one line"}
	}
	key := func(p point) (string, int) { return strconv.FormatInt(p.second, 10), p.line }
	if err := csvfile.Unique(rows, name, "second", key); err != nil {
		return Series{}, err
	}
	slices.SortFunc(rows, func(a, b point) int { return cmp.Compare(a.second, b.second) })
	first, last := rows[0].second, rows[len(rows)-1]
	if last.second-first >= MaxSeconds {
		return Series{}, &textfile.Fault{File: name, Line: last.line, Where: "second",
			What: fmt.Sprintf("%d is %d seconds after the first line, expected less than %d seconds", last.second, last.second-first, MaxSeconds)}
	}
	s := Series{Start: first, RPS: make([]float64, last.second-first+1)}
	s.Lines = make([]int32, len(s.RPS))
	for _, row := range rows {
		s.RPS[row.second-first], s.Lines[row.second-first] = row.rps, int32(row.line)
	}
	return s, nil
}

// WriteCSV writes the series in the format of ReadSeries.
func (s Series) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "second,rps")
	for i, v := range s.RPS {
		fmt.Fprintf(out, "%d,%s\n", s.Start+int64(i), csvfile.Format(v))
	}
	return out.Flush()
}
