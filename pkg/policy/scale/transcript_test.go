package scale

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. A line is one of these commands:
//
//	scaler NAME [min N max N idle DURATION]   begin with this scaler and these bounds
//	bounds min N max N idle DURATION          change the bounds
//	gone ID...                                these instances end without an action of the scaler
//	RPS rps for N s                           this load for N seconds
//
// A question mark at the end of a line also prints the state of the function. The
// indented lines below a command are the actions of the scaler and the state. A started
// instance is ready immediately and sustains its throughput in profiled.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", play)
}

func play(text string) (string, error) {
	var h host
	return transcript.Lines(text, func(line string) (output []string, err error) {
		line, printState := strings.CutSuffix(line, "?")
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "scaler":
			h, err = parseScaler(rest)
		case "bounds":
			var b Bounds
			b, err = parseBounds(rest)
			h.s.Step(h.now, []Event{Configure{b}}, nil)
		case "gone":
			for _, id := range strings.Fields(rest) {
				h.drop(id)
				h.s.Step(h.now, []Event{Terminated{id}}, nil)
			}
		default:
			output, err = h.playLoad(line)
		}
		if printState {
			s := h.s.Snapshot()
			output = append(output, fmt.Sprintf("= %d deployed, %d ready: %s", s.Deployed, s.Ready, s.Reason))
		}
		return output, err
	})
}

// playLoad runs a line "RPS rps for N s" and returns the actions of the scaler.
func (h *host) playLoad(line string) (actions []string, err error) {
	var rps float64
	var seconds int
	if _, err := fmt.Sscanf(line, "%g rps for %d s", &rps, &seconds); err != nil || h.s == nil {
		return nil, fmt.Errorf("expected a scaler, then RPS rps for N s: %v", err)
	}
	for range seconds {
		for _, a := range h.stepSecond(rps) {
			actions = append(actions, fmt.Sprintf("%.0fs: %s", h.now.Seconds(), describe(a)))
		}
	}
	return actions, nil
}

// parseScaler parses a line such as "lazy min 0 max 3 idle 10s". The bounds are optional.
func parseScaler(text string) (host, error) {
	name, rest, _ := strings.Cut(text, " ")
	b, err := parseBounds(rest)
	if err != nil {
		return host{}, err
	}
	s := scalers(b)[name]
	if s == nil {
		return host{}, fmt.Errorf("no scaler %q", name)
	}
	return host{s: s}, nil
}

func parseBounds(text string) (b Bounds, err error) {
	var idle string
	if text == "" {
		return b, nil
	}
	if _, err = fmt.Sscanf(text, "min %d max %d idle %s", &b.Min, &b.Max, &idle); err == nil {
		b.Idle, err = time.ParseDuration(idle)
	}
	return b, err
}

// scalers returns one scaler of each kind, by name.
func scalers(b Bounds) map[string]*Scaler {
	unit, _ := Unit(profiled, 0)
	return map[string]*Scaler{
		"lazy": NewLazy(unit, DefaultLazy(), b), "eager": NewEager(unit, Last{}, b), "infless": NewINFless(unit, b), "heuristic": NewHeuristic(profiled, Last{}, b),
	}
}

func describe(a Action) string {
	switch a := a.(type) {
	case Start:
		r, l := a.Like.Request, a.Like.Limit
		return fmt.Sprintf("start %d of %g%% at %g, up to %g: %s", a.Count, r.SMPct, r.Quota, l.Quota, a.Reason)
	case Stop:
		return fmt.Sprintf("stop %s: %s", strings.Join(a.IDs, " "), a.Reason)
	}
	return fmt.Sprintf("%+v", a)
}
