package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// minutes is a trace in the layout of the Azure Functions data set: one line per function,
// one column per minute, and the number of invocations in each cell. It stores only the
// cells above 0.
type minutes struct {
	cells         []cell // by minute, then by line
	opened        int    // number of cells whose minute has begun
	open          []Row  // the invocations of the current minute that are not read yet, in order
	seed          uint64
	total         int64         // number of invocations
	lines         map[int32]int // first line of each function
	repeatedLines int           // number of further lines of functions
	repeatNote    string        // message about the first of these
}

type cell struct {
	minute   int32
	function int32
	count    int64
}

func readMinutes(in *Reader, seed uint64) (*minutes, error) {
	m := &minutes{seed: seed, lines: map[int32]int{}}
	name := slices.Index(in.header, "HashFunction")
	columns, err := minuteColumns(in)
	if err != nil {
		return nil, err
	}
	for {
		fields, err := in.record()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(fields[name]) == 0 {
			return nil, in.fault("HashFunction", "the cell is empty, expected a value")
		}
		function, err := in.names.number(fields[name])
		if err != nil {
			return nil, in.fault("HashFunction", "%v", err)
		}
		m.recordLine(in, function, fields[name])
		for i, column := range columns {
			n, err := count(fields[column])
			if err == nil {
				err = m.addCell(n)
			}
			if err != nil {
				return nil, in.fault(in.header[column], "%v", err)
			}
			if n > 0 {
				m.cells = append(m.cells, cell{minute: int32(i), function: function, count: n})
			}
		}
	}
	slices.SortStableFunc(m.cells, func(a, b cell) int { return int(a.minute - b.minute) })
	return m, nil
}

// Limits of a trace in the per-minute layout, of which the reader holds a whole minute.
const (
	maxCount = 10_000_000    // per cell
	maxTotal = 1_000_000_000 // sum of all cells
	maxCells = 100_000_000   // above 0; a day of the Azure data set has 72 million cells in all
)

// addCell adds a cell to the total. It returns an error if a limit is exceeded.
func (m *minutes) addCell(n int64) error {
	if n == 0 {
		return nil
	}
	if m.total += n; m.total > maxTotal {
		return fmt.Errorf("%d invocations up to this cell, expected at most %d in total", m.total, int64(maxTotal))
	}
	if len(m.cells) == maxCells {
		return fmt.Errorf("more than %d cells above 0", maxCells)
	}
	return nil
}

// recordLine records a line of a function. Some days of the Azure data set have two lines
// of one function, which is valid but worth a note.
func (m *minutes) recordLine(in *Reader, function int32, name []byte) {
	first, twice := m.lines[function]
	if !twice {
		m.lines[function] = in.lines.line
		return
	}
	if m.repeatedLines++; m.repeatedLines == 1 {
		m.repeatNote = in.fault("HashFunction", "%s is already on line %d", csvfile.Quote(string(name)), first).Error()
	}
}

// minuteColumns returns the column of each minute, in the order of minutes.
func minuteColumns(in *Reader) ([]int, error) {
	places := map[string]int{}
	last := 1
	for i, name := range in.header {
		n, err := strconv.Atoi(name)
		minute := err == nil && n > 0 && strconv.Itoa(n) == name
		if !minute && name != "HashFunction" {
			continue
		}
		if _, twice := places[name]; twice {
			return nil, in.fault(name, "the header has this column twice, expected once")
		}
		places[name] = i
		last = max(last, n)
	}
	var columns []int
	for n := 1; n <= last; n++ {
		place, ok := places[strconv.Itoa(n)]
		if !ok {
			return nil, in.fault(strconv.Itoa(n), "the header has no such column, expected a column for each minute from 1")
		}
		columns = append(columns, place)
	}
	return columns, nil
}

func (m *minutes) next() (Row, error) {
	if len(m.open) == 0 {
		m.openMinute()
	}
	if len(m.open) == 0 {
		return Row{}, io.EOF
	}
	row := m.open[0]
	m.open = m.open[1:]
	return row, nil
}

// openMinute draws the invocations of the next minute that has any, and orders them by time, then by
// function.
func (m *minutes) openMinute() {
	m.open = nil
	for begin := m.opened; m.opened < len(m.cells) && m.cells[m.opened].minute == m.cells[begin].minute; m.opened++ {
		m.open = m.cells[m.opened].draw(m.open, splitmix.Source(splitmix.Mix(m.seed^uint64(m.opened)*0x9e3779b97f4a7c15)))
	}
	slices.SortFunc(m.open, func(a, b Row) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Function, b.Function)) })
}

// draw appends the invocations of a cell in order: the order statistics of count uniform draws. Each is the
// least of the remaining draws from the remaining part of the minute.
func (c cell) draw(rows []Row, rng splitmix.Source) []Row {
	remaining := 1.0
	for n := c.count; n > 0; n-- {
		u := (float64(rng.Uint64()>>11) + 0.5) / (1 << 53)
		remaining *= math.Pow(u, 1/float64(n))
		within := time.Duration((1 - remaining) * float64(time.Minute))
		rows = append(rows, Row{At: time.Duration(c.minute)*time.Minute + min(within, time.Minute-1), Function: c.function})
	}
	return rows
}
