package scale

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt: a line names the scaler, or a load
// and for how many seconds it lasts; the lines indented under it are what the
// scaler does about it. One instance sustains 10 rps; see profiled.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", play)
}

func play(text string) (string, error) {
	var scaler Scaler
	var w world
	second := 0
	return transcript.Lines(text, func(line string) (did []string, err error) {
		if name, ok := strings.CutPrefix(line, "scaler "); ok {
			unit, err := Unit(profiled)
			scaler = map[string]Scaler{
				"lazy": NewLazy(unit, DefaultLazy()), "eager": NewEager(unit, Last{}), "heuristic": NewHeuristic(profiled, Last{}),
			}[name]
			w, second = world{}, 0
			return nil, err
		}
		var rps float64
		var times int
		if _, err := fmt.Sscanf(line, "%g rps for %d s", &rps, &times); err != nil || scaler == nil {
			return nil, fmt.Errorf("expected a scaler, then RPS rps for N s: %v", err)
		}
		for range times {
			second++
			for _, a := range scaler.Step(rps, w.deployed) {
				w.apply([]Action{a})
				did = append(did, fmt.Sprintf("%ds: %s: %s", second, describe(a), a.Reason))
			}
		}
		return did, nil
	})
}

func describe(a Action) string {
	if a.Start == 0 {
		return "stop " + strings.Join(a.Stop, " ")
	}
	r, l := a.Like.Request, a.Like.Limit
	return fmt.Sprintf("start %d of %g%% at %g, up to %g", a.Start, r.SMPct, r.Quota, l.Quota)
}
