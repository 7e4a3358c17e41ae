package sim

import (
	"encoding/json"
	"io"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/record"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Log writes decisions as JSON lines.
type Log struct {
	encoder   *json.Encoder
	functions []trace.Function
}

// NewLog returns a log of a run with these functions.
func NewLog(w io.Writer, functions []trace.Function) *Log {
	return &Log{encoder: json.NewEncoder(w), functions: functions}
}

// decision is a decision with the text form of its reason.
type decision struct {
	record.Decision
	Reason string        `json:"reason"`
	Value  float64       `json:"value,omitempty"` // the value of the reason's parameter
	Cause  reason.Reason `json:"cause"`
}

// Decide writes a decision. It is meant for Config.Decide.
func (l *Log) Decide(now time.Duration, a *queue.Action) error {
	line := decision{Decision: record.NewDecision(now, a, func(number int32) string { return l.functions[number].Name }), Value: a.Reason.Value}
	line.Cause = line.Decision.Reason
	line.Reason = line.Cause.String()
	return l.encoder.Encode(line)
}
