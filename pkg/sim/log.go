package sim

import (
	"encoding/json"
	"io"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Log writes decisions as JSON lines.
type Log struct {
	out       *json.Encoder
	functions []trace.Function
}

// NewLog writes the decisions of a run with these functions.
func NewLog(w io.Writer, functions []trace.Function) *Log {
	return &Log{out: json.NewEncoder(w), functions: functions}
}

// Decide writes a decision: it is a Config's Decide.
func (l *Log) Decide(now time.Duration, a *queue.Action) error {
	return l.out.Encode(record.Decide(now, a, func(number int32) string { return l.functions[number].Name }))
}
