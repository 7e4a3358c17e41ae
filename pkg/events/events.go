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
	sparse := func(c csvfile.Column[Event]) csvfile.Column[Event] { // a stop does not need the cell
		c.Sparse = true
		return c
	}
	return []csvfile.Column[Event]{
		csvfile.Required("time_s", csvfile.Number, func(e *Event) *float64 { return &e.Time }),
		csvfile.Required("action", parseAction, func(e *Event) *bool { return &e.Start }),
		csvfile.Required("instance", csvfile.Name, func(e *Event) *string { return &e.Instance }),
		sparse(csvfile.Required("function", csvfile.Name, func(e *Event) *string { return &e.Function })),
		sparse(csvfile.Required("kind", csvfile.Name, func(e *Event) *string { return &e.Kind })),
		sparse(csvfile.Required("gpus", parseGPUs, func(e *Event) *int { return &e.GPUs })),
		sparse(csvfile.Required("sm_request", parseFraction, func(e *Event) *float64 { return &e.SMRequest })),
		sparse(csvfile.Required("sm_limit", parseFraction, func(e *Event) *float64 { return &e.SMLimit })),
		sparse(csvfile.Required("mem_mib", csvfile.Number, func(e *Event) *float64 { return &e.MemMiB })),
		csvfile.Field("gpu", parseModels, func(e *Event) *[]string { return &e.Models }),
	}
}

// parseFraction parses a number from 0 to 1.
func parseFraction(cell string) (float64, error) {
	v, err := csvfile.Number(cell)
	if err == nil && v > 1 {
		err = fmt.Errorf("%s is out of range, expected 0 to 1", csvfile.Quote(cell))
	}
	return v, err
}

func parseAction(cell string) (isStart bool, err error) {
	if cell != start && cell != stop {
		err = fmt.Errorf("%s is not an action, expected start or stop", csvfile.Quote(cell))
	}
	return cell == start, err
}

func parseGPUs(cell string) (int, error) {
	v, err := csvfile.Count(cell, 0)
	if err == nil && v > MaxGPUs {
		err = fmt.Errorf("%s is out of range, expected 1 to %d", csvfile.Quote(cell), MaxGPUs)
	}
	return int(v), err
}

func parseModels(cell string) (models []string, err error) {
	if _, err := csvfile.Name(cell); err != nil {
		return nil, err
	}
	for model := range strings.SplitSeq(cell, "|") {
		models = append(models, strings.TrimSpace(model))
	}
	if slices.Contains(models, "") {
		err = fmt.Errorf("%s has an empty name, expected GPU models like V100|A100", csvfile.Quote(cell))
	}
	return models, err
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
