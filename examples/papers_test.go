package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPaperScript runs a script that uses the functions in papers/lib.sh. It checks the results of
// five runs, the files, and the exit status when a result has moved, is missing, or cannot be
// computed.
func TestPaperScript(t *testing.T) {
	t.Parallel()
	programs := filepath.Dir(built(t, "bin", "gfaas-sim"))
	lib, err := os.ReadFile("papers/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	const script = `. "$(dirname "$0")/lib.sh"
workload w trace --functions 2 --rate 5 --duration 5s
compare runs w --policy fcfs,sjf
result runs "$(tail -n +2 "$work/runs" | grep -c ^fcfs)"
`
	for name, c := range map[string]struct {
		end, want, stdout string
		status            int
	}{
		"good":    {"result half '1 / 2'\nfinish\n", "half,fig. 1,half,,up to 1,0.5,5%,", "", 0},
		"moved":   {"result half '2 / 3'\nfinish\n", "half,fig. 1,half,,up to 1,0.6667,5%,", "half: half: 0.667, expected 0.5 ± 5%", 1},
		"missing": {"finish\n", "", `has no result for "half"`, 1},
		"column":  {"result half \"$(mean runs fcfs no_such_ms)\"\nfinish\n", "", "no column no_such_ms", 1},
		"fails":   {"gfaas-sim queue --policy none\nfinish\n", "", "test: line 5 failed", 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"lib.sh": string(lib), "test.sh": script + c.end,
				"test.csv": "id,figure,quantity,unit,theirs,ours,tolerance,reason\nruns,fig. 1,runs,,,5,0%,\nhalf,fig. 1,half,,up to 1,0.5,5%,\n"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("bash", filepath.Join(dir, "test.sh"), filepath.Join(dir, "out"))
			cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
			printed, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != c.status || !strings.Contains(string(printed), c.stdout) {
				t.Errorf("got exit status %d and\n%s\nwant %d and %q", cmd.ProcessState.ExitCode(), printed, c.status, c.stdout)
			}
			if c.want == "" {
				return
			}
			table, err := os.ReadFile(filepath.Join(dir, "out", "test.csv"))
			if err != nil || !strings.Contains(string(table), "runs,fig. 1,runs,,,5,0%,") || !strings.Contains(string(table), c.want) {
				t.Errorf("CSV file: got %s, %v; want 5 runs and %s", table, err, c.want)
			}
			if picture, err := os.ReadFile(filepath.Join(dir, "out", "test.svg")); err != nil || !strings.Contains(string(picture), "fig. 1: half") {
				t.Errorf("picture: got %.200s, %v; want one with the row", picture, err)
			}
		})
	}
}

// TestPaperScripts checks that each script has a file of expectations and can be run.
func TestPaperScripts(t *testing.T) {
	scripts, err := filepath.Glob("papers/*.sh")
	if err != nil || len(scripts) < 2 {
		t.Fatalf("got scripts %q, %v; want several", scripts, err)
	}
	for _, script := range scripts {
		if filepath.Base(script) == "lib.sh" {
			continue
		}
		if info, err := os.Stat(script); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s: got %v, %v; want an executable file", script, info.Mode(), err)
		}
		if _, err := os.Stat(strings.TrimSuffix(script, ".sh") + ".csv"); err != nil {
			t.Error(err)
		}
	}
}
