package trace

import (
	"container/heap"
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

// minutes is a trace in the layout of the Azure Functions data set: a line a
// function, a column a minute, a cell the number of invocations. Memory is
// what the cells above 0 take.
type minutes struct {
	cells  []cell  // in order of minute, then of the line
	opened int     // cells whose minute has begun
	open   streams // the current minute's functions, by their next invocation
	seed   uint64
	total  int64         // invocations
	lines  map[int32]int // of each function: its first
	more   int           // lines of functions that have one already
	again  string        // what the first of them is
}

type cell struct {
	minute   int32
	function int32
	count    int64
}

// stream is one function's invocations within one minute: the order statistics
// of count uniform draws, one after another.
type stream struct {
	cell
	at   time.Duration
	rest float64 // the part of the minute still ahead
	rng  splitmix.Source
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
		function, err := in.names.find(fields[name])
		if err != nil {
			return nil, in.fault("HashFunction", "%v", err)
		}
		m.count(in, function, fields[name])
		for i, column := range columns {
			n, err := count(fields[column])
			if err == nil {
				err = m.add(n)
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

// The bounds of a trace of counts a minute, whose readers hold all of a minute.
const (
	maxCount = 10_000_000    // of a cell
	maxTotal = 1_000_000_000 // of all cells
	maxCells = 100_000_000   // above 0: a day of the Azure data set has 72 million in all
)

// add counts a cell, and says why it is one too many.
func (m *minutes) add(n int64) error {
	if n == 0 {
		return nil
	}
	if m.total += n; m.total > maxTotal {
		return fmt.Errorf("with this cell there are %d invocations, expected at most %d in all", m.total, int64(maxTotal))
	}
	if len(m.cells) == maxCells {
		return fmt.Errorf("there are more than %d cells above 0, expected at most that", maxCells)
	}
	return nil
}

// count notes a line of a function. Some days of the Azure data set have two of
// one: that is no fault of the file, but their reader should know.
func (m *minutes) count(in *Reader, function int32, name []byte) {
	first, twice := m.lines[function]
	if !twice {
		m.lines[function] = in.lines.line
		return
	}
	if m.more++; m.more == 1 {
		m.again = in.fault("HashFunction", "%s is on line %d already", csvfile.Quote(string(name)), first).Error()
	}
}

// minuteColumns says where the header has each minute, wherever that is.
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
	s := &m.open[0]
	row := Row{At: s.at, Function: s.function}
	if s.count--; s.count == 0 {
		heap.Pop(&m.open)
	} else {
		s.advance()
		heap.Fix(&m.open, 0)
	}
	return row, nil
}

func (m *minutes) openMinute() {
	for begin := m.opened; m.opened < len(m.cells) && m.cells[m.opened].minute == m.cells[begin].minute; m.opened++ {
		c := m.cells[m.opened]
		s := stream{cell: c, rest: 1, rng: splitmix.Source(splitmix.Mix(m.seed ^ uint64(m.opened)*0x9e3779b97f4a7c15))}
		s.advance()
		m.open = append(m.open, s)
	}
	heap.Init(&m.open)
}

// advance draws the next of the remaining invocations: the least of count
// uniform draws from the part of the minute that is left.
func (s *stream) advance() {
	u := (float64(s.rng.Uint64()>>11) + 0.5) / (1 << 53)
	s.rest *= math.Pow(u, 1/float64(s.count))
	within := time.Duration((1 - s.rest) * float64(time.Minute))
	s.at = time.Duration(s.minute)*time.Minute + min(within, time.Minute-1)
}

// streams is a heap by time, then by place in the file.
type streams []stream

func (s streams) Len() int { return len(s) }
func (s streams) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].function < s[j].function
}
func (s streams) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *streams) Push(x any)   { *s = append(*s, x.(stream)) }
func (s *streams) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	*s = (*s)[:last]
	return x
}
