package sim

import (
	"encoding/json"
	"io"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Log writes decisions as JSON lines.
type Log struct {
	out       *json.Encoder
	functions []trace.Function
}

// entry is one decision. Times are in milliseconds.
type entry struct {
	TimeMS     float64       `json:"time_ms"`
	Action     string        `json:"action"`
	Function   string        `json:"function,omitempty"`
	Invocation *int64        `json:"invocation,omitempty"` // its place in the trace, from 0
	GPU        *int32        `json:"gpu,omitempty"`
	Container  *residency.ID `json:"container,omitempty"`
	Start      string        `json:"start,omitempty"`
	FalseMiss  bool          `json:"false_miss,omitempty"`
	WaitedMS   *float64      `json:"waited_ms,omitempty"`
	ExpectedMS *float64      `json:"expected_ms,omitempty"`
	AtMS       *float64      `json:"at_ms,omitempty"`
	Reason     string        `json:"reason"`
	Value      float64       `json:"value,omitempty"` // what the reason compares
	Waiting    int32         `json:"waiting,omitempty"`
	InFlight   int32         `json:"in_flight,omitempty"`
}

// NewLog writes the decisions of a run with these functions.
func NewLog(w io.Writer, functions []trace.Function) *Log {
	return &Log{out: json.NewEncoder(w), functions: functions}
}

// Decide writes a decision: it is a Config's Decide.
func (l *Log) Decide(now time.Duration, a *queue.Action) error {
	e := entry{TimeMS: ms(now), Action: a.Kind.String(), Reason: a.Reason.Rule, Value: a.Reason.Value,
		Waiting: a.Reason.Waiting, InFlight: a.Reason.InFlight}
	if a.Kind == queue.Wake {
		at := ms(a.At)
		e.AtMS = &at
		return l.out.Encode(e)
	}
	e.Function = l.functions[a.Function].Name
	if a.GPU >= 0 {
		e.GPU = &a.GPU
	}
	if a.Instance >= 0 {
		e.Container = &a.Instance
	}
	switch a.Kind {
	case queue.Run:
		expected := ms(a.Expected)
		e.Start, e.FalseMiss, e.ExpectedMS = a.Start.String(), a.Elsewhere, &expected
		fallthrough
	case queue.Reject, queue.Assign:
		waited := ms(now - a.Arrived)
		e.Invocation, e.WaitedMS = &a.ID, &waited
	}
	return l.out.Encode(e)
}
