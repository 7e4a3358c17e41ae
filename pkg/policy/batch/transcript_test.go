package batch_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/batch"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. A line begins with the time in ms, and then has events:
//
//	call ID KEY SIZE [since MS]   a call arrives, with the limits of the line before
//	cancel ID                     the caller of the call disconnects
//	instance BATCH [max N]        the batch gets an instance
//	refused BATCH                 the batch will get no instance
//	woke                          the time of the latest wake has come
//
// Events are separated by semicolons. The line "limits MAX LATENCY" sets the limits of the calls that
// follow. A question mark at the end of a line also prints the number of batches and calls.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", func(text string) (string, error) {
		p := player{former: batch.New()}
		return transcript.Lines(text, p.line)
	})
}

type player struct {
	former  *batch.Former
	max     int
	latency time.Duration
}

func (p *player) line(line string) (out []string, err error) {
	line, printState := strings.CutSuffix(line, "?")
	if rest, ok := strings.CutPrefix(line, "limits "); ok {
		var latency string
		if _, err := fmt.Sscan(rest, &p.max, &latency); err != nil {
			return nil, err
		}
		p.latency, err = time.ParseDuration(latency)
		return nil, err
	}
	at, rest, _ := strings.Cut(line, " ")
	now, err := milliseconds(at)
	if err != nil {
		return nil, err
	}
	var events []batch.Event
	for text := range strings.SplitSeq(rest, ";") {
		ev, err := p.event(now, strings.Fields(text))
		if err != nil {
			return nil, err
		}
		events = append(events, ev)
	}
	for _, a := range p.former.Step(now, events, nil) {
		out = append(out, describe(a))
	}
	if printState {
		s := p.former.Snapshot()
		out = append(out, fmt.Sprintf("= %d gathering, %d queued, %d calls", s.Gathering, s.Queued, s.Calls))
	}
	return out, nil
}

func (p *player) event(now time.Duration, words []string) (batch.Event, error) {
	number := func(at int) int64 {
		if at >= len(words) {
			return 0
		}
		n, _ := strconv.ParseInt(words[at], 10, 64)
		return n
	}
	switch words[0] {
	case "call":
		c := batch.Arrived{Call: number(1), Key: words[2], Size: int(number(3)), Since: now, Max: p.max, Latency: p.latency}
		if len(words) > 4 {
			since, err := milliseconds(words[5])
			c.Since = since
			return c, err
		}
		return c, nil
	case "cancel":
		return batch.Cancelled{Call: number(1)}, nil
	case "instance":
		return batch.Assigned{Batch: number(1), Max: int(number(3))}, nil
	case "refused":
		return batch.Refused{Batch: number(1)}, nil
	case "woke":
		return batch.Woke{}, nil
	}
	return nil, fmt.Errorf("unknown event %q", words)
}

func milliseconds(text string) (time.Duration, error) {
	ms, err := strconv.ParseFloat(text, 64)
	return time.Duration(ms * float64(time.Millisecond)), err
}

func describe(a batch.Action) string {
	switch a := a.(type) {
	case batch.Queue:
		return fmt.Sprintf("queue %d, waiting since %v", a.Batch, a.Since)
	case batch.Send:
		return fmt.Sprintf("send %d: %v", a.Batch, a.Calls)
	case batch.Refuse:
		return fmt.Sprintf("refuse %d: %v", a.Batch, a.Calls)
	case batch.Withdraw:
		return fmt.Sprintf("withdraw %d", a.Batch)
	case batch.Wake:
		if a.At == batch.Never {
			return "no wake"
		}
		return fmt.Sprintf("wake at %v", a.At)
	}
	return fmt.Sprintf("%+v", a)
}
