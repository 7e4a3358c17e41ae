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
	var out strings.Builder
	var scaler Scaler
	var w world
	second := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var rps float64
		var times int
		if name, ok := strings.CutPrefix(line, "scaler "); ok {
			unit, err := Unit(profiled)
			if err != nil {
				return "", err
			}
			scaler = map[string]Scaler{
				"lazy": NewLazy(unit, DefaultLazy()), "eager": NewEager(unit, Last{}), "heuristic": NewHeuristic(profiled, Last{}),
			}[name]
			w, second = world{}, 0
			continue
		}
		if _, err := fmt.Sscanf(line, "%g rps for %d s", &rps, &times); err != nil || scaler == nil {
			return "", fmt.Errorf("%q: %v", line, err)
		}
		for range times {
			second++
			for _, a := range scaler.Step(rps, w.deployed) {
				w.apply([]Action{a})
				fmt.Fprintf(&out, "  %ds: %s: %s\n", second, describe(a), a.Reason)
			}
		}
	}
	return out.String(), nil
}

func describe(a Action) string {
	if a.Start == 0 {
		return "stop " + strings.Join(a.Stop, " ")
	}
	r, l := a.Like.Request, a.Like.Limit
	return fmt.Sprintf("start %d of %g%% at %g, up to %g", a.Start, r.SMPct, r.Quota, l.Quota)
}
