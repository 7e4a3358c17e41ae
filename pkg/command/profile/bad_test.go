package profile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFunctionsThatGoWrong measures faulty functions. Each leads to a failed configuration or to a row that shows the
// fault, and leaves nothing behind.
func TestFunctionsThatGoWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   string
		args   []string
		exit   int
		stderr string // a pattern, in which . also matches a line feed
		rows   int
	}{
		{"never", []string{"--start-timeout", "2s"}, 1, "not ready after 2s: not ready \\(GET /healthz: status 503\\)", 0},
		{"errors", nil, 1, "the instance is ready but does not answer: status 500 x", 0},
		{"dies", []string{"--duration", "1m"}, 1, "the instance ended during the trial: .*9.*it printed last:\\s+bad: the end", 0},
		{"leaks", []string{"--load", "closed:1", "--duration", "1m"}, 1, "requests in a row failed, the last with: status 500.*it printed last:\\s+bad: out of GPU memory", 0},
		{"slow", []string{"--start-timeout", "15s"}, 1, "has not answered its first request within 15s", 0},
		{"deaf", nil, 0, "", 1},
		{"loud", nil, 0, "", 1},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel() // each case uses a separate run directory
			r := newReal(t).serve()
			file := filepath.Join(r.work, c.kind+".yaml")
			text := "name: bad\ncontract: http\ngpu_mem: 256MiB\ncommand: [" + filepath.Join(r.build, "victim/bad") + ", " + c.kind + "]\n"
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := r.profile(file, append([]string{"--sm", "50", "--quota", "1", "--duration", "500ms", "--warmup", "0s"}, c.args...)...)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			exit := 0
			var ended *exec.ExitError
			if errors.As(err, &ended) {
				exit = ended.ExitCode()
			}
			if exit != c.exit || !regexp.MustCompile("(?s)"+c.stderr).MatchString(stderr.String()) {
				t.Errorf("exit %d, want %d and %q:\n%s", exit, c.exit, c.stderr, &stderr)
			}
			if rows := strings.Count(stdout.String(), "\nbad,"); rows != c.rows {
				t.Errorf("%d rows, want %d:\n%s", rows, c.rows, &stdout)
			}
			if stderr.Len() > 10_000 {
				t.Errorf("%d bytes of messages, want at most 10_000", stderr.Len())
			}
			if left := r.pids(); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			if logs, _ := filepath.Glob(filepath.Join(r.runDir, "logs-*")); len(logs) > 0 {
				t.Errorf("%v is left", logs)
			}
		})
	}
}

// TestProgramThatDoesNotExist checks that an error that every configuration would meet is reported once.
func TestProgramThatDoesNotExist(t *testing.T) {
	t.Parallel() // it uses a separate run directory
	r := newReal(t)
	file := filepath.Join(r.work, "f.yaml")
	if err := os.WriteFile(file, []byte("name: bad\ncommand: [./nothing]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := r.profile(file).CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 4 || strings.Count(string(out), "nothing: command not found") != 1 {
		t.Errorf("%v, want 4:\n%s", err, out)
	}
}
