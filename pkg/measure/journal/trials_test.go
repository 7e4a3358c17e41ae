package journal

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/profile"
)

// A resumed file keeps its whole lines; otherwise the file is replaced.
func TestTrialsOfAnEarlierRun(t *testing.T) {
	trial := func(name string) profile.Trial {
		return profile.Trial{Function: name, Config: profile.Config{SMPct: 50, Quota: 1, Batch: 1}, OfferedRPS: 1, SLOMS: 5}
	}
	path := filepath.Join(t.TempDir(), "trials.csv")
	for _, c := range []struct {
		resume  bool
		cutLast bool // cut the file in the middle of its last line
		want    []string
	}{
		{resume: true, want: []string{"a", "b"}},
		{resume: true, cutLast: true, want: []string{"a", "a", "b"}},
		{resume: false, cutLast: true, want: []string{"a", "b"}},
	} {
		if c.cutLast {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data[:len(data)-4], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		log, err := CreateTrials(path)
		if c.resume {
			log, err = ResumeTrials(path, nil, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			if err := log.Append(trial(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		kept, err := read(path, profile.ReadTrials)
		var got []string
		for _, k := range kept {
			got = append(got, k.Function)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("resume %v, last line cut %v: got the trials %q, %v; want %q", c.resume, c.cutLast, got, err, c.want)
		}
	}
	if err := os.WriteFile(path, []byte("not,trials\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ResumeTrials(path, nil, ""); err == nil {
		t.Error("resuming with a file that has no trials: got no error, want one")
	}
	if _, err := ResumeTrials("/dev/zero", nil, ""); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("resuming with a device: got %v, want \"is not a regular file\"", err)
	}
}

// If a run ended before the row of a configuration was complete, its trials are made again
// and replace the old ones.
func TestRepeatedTrialsReplaceOldOnes(t *testing.T) {
	at := profile.Config{SMPct: 50, Quota: 1, Batch: 1}
	trial := func(name, gpu string, rps float64) profile.Trial {
		return profile.Trial{Function: name, GPU: gpu, Config: at, OfferedRPS: rps, SLOMS: 5}
	}
	path := filepath.Join(t.TempDir(), "trials.csv")
	remeasured := map[measure.Point]bool{{Function: "b", Config: at}: true}
	for _, run := range []struct {
		remeasured map[measure.Point]bool
		trials     []profile.Trial
		want       []float64
	}{
		{nil, []profile.Trial{trial("a", "V100", 1), trial("b", "V100", 2), trial("b", "A100", 3), trial("a", "V100", 4)}, []float64{1, 2, 3, 4}},
		{remeasured, nil, []float64{1, 2, 3, 4}}, // without a new trial, the old ones stay
		{remeasured, []profile.Trial{trial("b", "V100", 5), trial("b", "V100", 6)}, []float64{1, 3, 4, 5, 6}},
	} {
		log, err := ResumeTrials(path, run.remeasured, "V100")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range run.trials {
			if err := log.Append(one); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		kept, err := read(path, profile.ReadTrials)
		var got []float64
		for _, k := range kept {
			got = append(got, k.OfferedRPS)
		}
		if err != nil || !slices.Equal(got, run.want) {
			t.Errorf("rates of the stored trials: got %v, %v; want %v", got, err, run.want)
		}
	}
}

// A file that is removed or emptied after it was read is written again with its earlier trials.
func TestTrialsOfALostFile(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		path := filepath.Join(t.TempDir(), "trials.csv")
		for i, function := range []string{"a", "b"} {
			log, err := CreateTrials(path)
			if i > 0 {
				log, err = ResumeTrials(path, nil, "")
			}
			if err == nil && i > 0 {
				err = lose(path)
			}
			if err == nil {
				err = log.Append(profile.Trial{Function: function, Config: profile.Config{SMPct: 50, Quota: 1, Batch: 1}, OfferedRPS: 1, SLOMS: 5})
			}
			if err == nil {
				err = log.Close()
			}
			if err != nil {
				t.Fatal(name, ": ", err)
			}
		}
		kept, err := read(path, profile.ReadTrials)
		if err != nil || len(kept) != 2 || kept[0].Function != "a" || kept[1].Function != "b" {
			t.Errorf("%s: got the trials %+v, %v; want those of a and b", name, kept, err)
		}
	}
}
