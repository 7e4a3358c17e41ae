package scale

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt: a line names the scaler and its
// bounds, changes them, lets instances go, or is a load and for how many seconds
// it lasts; the lines indented under it are what the scaler does about it. What
// it starts serves at once, and one instance sustains 10 rps; see profiled. A
// question mark at a line's end asks how the function then stands.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", play)
}

func play(text string) (string, error) {
	var h host
	return transcript.Lines(text, func(line string) (did []string, err error) {
		line, asked := strings.CutSuffix(line, "?")
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
				h.s.Step(h.now, []Event{Gone{id}}, nil)
			}
		default:
			did, err = h.playLoad(line)
		}
		if asked {
			s := h.s.Snapshot()
			did = append(did, fmt.Sprintf("= %d deployed, %d ready: %s", s.Deployed, s.Ready, s.Why))
		}
		return did, err
	})
}

func (h *host) playLoad(line string) (did []string, err error) {
	var rps float64
	var times int
	if _, err := fmt.Sscanf(line, "%g rps for %d s", &rps, &times); err != nil || h.s == nil {
		return nil, fmt.Errorf("expected a scaler, then RPS rps for N s: %v", err)
	}
	for range times {
		for _, a := range h.second(rps) {
			did = append(did, fmt.Sprintf("%.0fs: %s", h.now.Seconds(), describe(a)))
		}
	}
	return did, nil
}

// parseScaler reads `lazy min 0 max 3 idle 10s`, the bounds being optional.
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

// scalers are one of each rule.
func scalers(b Bounds) map[string]*Scaler {
	unit, _ := Unit(profiled)
	return map[string]*Scaler{
		"lazy": NewLazy(unit, DefaultLazy(), b), "eager": NewEager(unit, Last{}, b), "heuristic": NewHeuristic(profiled, Last{}, b),
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
