package profile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestGPUIsMeasuredByOneRunAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := lockGPUs(dir, []string{"sim", "sim:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockGPUs(dir, []string{"0", "sim:1"})
	var e *cli.Error
	if !errors.As(err, &e) || e.Exit != cli.ExitUnavailable || e.Hint == "" || !strings.Contains(err.Error(), "GPU sim:1") {
		t.Errorf("second lock: %v", err)
	}
	again, err := lockGPUs(dir, []string{"0"})
	if err != nil {
		t.Errorf("the refused run kept GPU 0: %v", err)
	} else {
		again()
	}
	release()
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// Of two runs that go on with one file, or begin it, one is refused: neither
// would see the rows of the other.
func TestResultsAreOneRunsAtATime(t *testing.T) {
	for name, before := range map[string]string{
		"new": "", "whole": strings.Join(profile.Header(), ",") + "\n",
		"other columns": "function,sm_pct,quota,throughput_rps,p95_ms\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.csv")
			if before != "" {
				if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			row := profile.Row{Function: "f", GPU: "sim", Config: profile.Config{SMPct: 10, Quota: 1, Batch: 1}, ThroughputRPS: 5, P95MS: 9, Samples: 10, TrialS: 1}
			_, first, err := goOn(path)
			if err != nil {
				t.Fatal(err)
			}
			_, early, refused := goOn(path)
			if err := first.Append(row); err != nil {
				t.Fatal(err)
			}
			if refused == nil {
				refused = early.Append(row)
				_ = early.Close()
			}
			_, _, late := goOn(path)
			for when, err := range map[string]error{"before a row": refused, "after it": late} {
				var e *cli.Error
				if !errors.As(err, &e) || e.Exit != cli.ExitLocked || !strings.Contains(err.Error(), path) {
					t.Errorf("the second, %s: %v", when, err)
				}
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			p, again, err := goOn(path)
			if err != nil || len(p.rows) != 1 {
				t.Fatalf("%+v, %v; want the row of the first", p, err)
			}
			_ = again.Close()
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
