// Package events reads and writes the events of a cluster of GPUs: starts and stops of instances (docs/files.md). Read
// returns a Log of Events; Mix draws the events of Dilu's mix. gfaas-sim cluster uses it.
package events

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Event is the start or the stop of an instance. A start has the instance's requirements for each of its GPUs.
type Event struct {
	Time      float64 // seconds
	Start     bool
	Instance  string
	Function  string
	Kind      string // training, inference, llm or any other word
	GPUs      int    // on one node
	SMRequest float64
	SMLimit   float64 // fractions of a GPU's SMs, at least SMRequest
	MemMiB    float64
	Models    []string // of GPU that will do; none: any
	Line      int
}

// The values of the column action.
const (
	start = "start"
	stop  = "stop"
)

// Log is a file of events in order of time; events at the same time are in the order of the file.
type Log struct {
	Events []Event
	Sorted bool // the file was in another order
}

// MaxGPUs is the largest number of GPUs of an instance.
const MaxGPUs = 1024

// Read reads events (CSV: time_s, action, instance, function, kind, gpus, sm_request, sm_limit, mem_mib, optionally gpu)
// and sorts them by time. Starting a running instance and stopping one that is not running are faults. name is
// the file's name in error messages.
func Read(r io.Reader, name string) (Log, error) {
	rows, err := csvfile.ReadWritten(r, name, columns(), func(line int) Event { return Event{Line: line} })
	if err != nil {
		return Log{}, err
	}
	log := Log{Events: make([]Event, len(rows))}
	for i, e := range rows {
		if !e.Start {
			e = Event{Time: e.Time, Instance: e.Instance, Function: e.Function, Kind: e.Kind, Line: e.Line}
		}
		if where, err := e.check(); err != nil {
			return Log{}, &textfile.Fault{File: name, Line: e.Line, Where: where, What: err.Error()}
		}
		log.Events[i] = e
	}
	byTime := func(a, b Event) int { return cmp.Compare(a.Time, b.Time) }
	if !slices.IsSortedFunc(log.Events, byTime) {
		log.Sorted = true
		slices.SortStableFunc(log.Events, byTime)
	}
	return log, checkOrder(log.Events, name)
}

func columns() []csvfile.Column[Event] {
	name := func(column string, sparse bool, at func(*Event) *string) csvfile.Column[Event] {
		return csvfile.Column[Event]{Name: column, Required: true, Sparse: sparse, Set: func(e *Event, cell string) (err error) {
			*at(e), err = csvfile.Name(cell)
			return err
		}}
	}
	number := func(column string, sparse bool, most float64, at func(*Event) *float64) csvfile.Column[Event] {
		return csvfile.Column[Event]{Name: column, Required: true, Sparse: sparse, Set: func(e *Event, cell string) error {
			v, err := csvfile.Number(cell)
			if err == nil && v > most {
				err = fmt.Errorf("%s is out of range, expected 0 to %s", csvfile.Quote(cell), number.Plain(most))
			}
			*at(e) = v
			return err
		}}
	}
	return []csvfile.Column[Event]{
		number("time_s", false, csvfile.Largest, func(e *Event) *float64 { return &e.Time }),
		{Name: "action", Required: true, Set: func(e *Event, cell string) error {
			e.Start = cell == start
			if cell != start && cell != stop {
				return fmt.Errorf("%s is not an action, expected start or stop", csvfile.Quote(cell))
			}
			return nil
		}},
		name("instance", false, func(e *Event) *string { return &e.Instance }),
		name("function", true, func(e *Event) *string { return &e.Function }),
		name("kind", true, func(e *Event) *string { return &e.Kind }),
		{Name: "gpus", Required: true, Sparse: true, Set: func(e *Event, cell string) error {
			v, err := csvfile.Count(cell, 0)
			if err == nil && v > MaxGPUs {
				err = fmt.Errorf("%s is out of range, expected 1 to %d", csvfile.Quote(cell), MaxGPUs)
			}
			e.GPUs = int(v)
			return err
		}},
		number("sm_request", true, 1, func(e *Event) *float64 { return &e.SMRequest }),
		number("sm_limit", true, 1, func(e *Event) *float64 { return &e.SMLimit }),
		number("mem_mib", true, csvfile.Largest, func(e *Event) *float64 { return &e.MemMiB }),
		{Name: "gpu", Set: func(e *Event, cell string) error {
			if _, err := csvfile.Name(cell); err != nil {
				return err
			}
			for model := range strings.SplitSeq(cell, "|") {
				e.Models = append(e.Models, strings.TrimSpace(model))
			}
			if slices.Contains(e.Models, "") {
				return fmt.Errorf("%s has an empty name, expected GPU models like V100|A100", csvfile.Quote(cell))
			}
			return nil
		}},
	}
}

// check returns the column of a start whose value is missing or inconsistent. Empty cells read as zero; a start needs its
// function and its GPUs.
func (e *Event) check() (column string, err error) {
	switch {
	case !e.Start:
		return "", nil
	case e.Function == "":
		return "function", errors.New("the cell is empty, expected a value for a start")
	case e.GPUs < 1:
		return "gpus", errors.New("the cell is empty or 0, expected 1 or more for a start")
	case e.SMLimit < e.SMRequest:
		return "sm_limit", fmt.Errorf("%s is below sm_request %s, expected at least as much", number.Plain(e.SMLimit), number.Plain(e.SMRequest))
	}
	return "", nil
}

// checkOrder checks starts and stops in order of time.
func checkOrder(all []Event, name string) error {
	running := map[string]int{}
	for _, e := range all {
		line, runs := running[e.Instance]
		what := ""
		switch {
		case e.Start && runs:
			what = fmt.Sprintf("%s has been running since line %d, expected a stop before it starts again", csvfile.Quote(e.Instance), line)
		case !e.Start && !runs:
			what = fmt.Sprintf("%s is not running at this time, expected a start before it stops", csvfile.Quote(e.Instance))
		}
		if what != "" {
			return &textfile.Fault{File: name, Line: e.Line, Where: "instance", What: what}
		}
		if e.Start {
			running[e.Instance] = e.Line
		} else {
			delete(running, e.Instance)
		}
	}
	return nil
}

// Write writes events in the form that Read accepts. It writes the column gpu if an event names models.
func Write(w io.Writer, all []Event) error {
	header := []string{"time_s", "action", "instance", "function", "kind", "gpus", "sm_request", "sm_limit", "mem_mib"}
	named := slices.ContainsFunc(all, func(e Event) bool { return len(e.Models) > 0 })
	if named {
		header = append(header, "gpu")
	}
	out := csv.NewWriter(w)
	if err := out.Write(header); err != nil {
		return err
	}
	for _, e := range all {
		row := []string{number.Plain(e.Time), stop, e.Instance, e.Function, e.Kind, "", "", "", ""}
		if e.Start {
			row = []string{number.Plain(e.Time), start, e.Instance, e.Function, e.Kind, strconv.Itoa(e.GPUs),
				number.Plain(e.SMRequest), number.Plain(e.SMLimit), number.Plain(e.MemMiB)}
		}
		if named {
			row = append(row, strings.Join(e.Models, "|"))
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
