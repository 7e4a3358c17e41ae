package scale

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// TestTranscripts replays testdata/*.txt: a line names the scaler, or a load
// and for how many seconds it lasts; the lines indented under it are what the
// scaler does about it. One instance sustains 10 rps; see profiled.
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := play(string(old))
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(old) {
				t.Errorf("the scaler does otherwise (go test -update rewrites):\n%s", got)
			}
		})
	}
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
