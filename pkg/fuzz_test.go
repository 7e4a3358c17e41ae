package pkg_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// fakeGo is a go command that lists two packages, one of them without tests. If $STATUS
// is notBuilt, its build fails. Otherwise it builds a program that prints a file and
// exits with $STATUS.
const (
	notBuilt = 2
	fakeGo   = `#!/bin/sh
case $1 in
list) echo "$DIR/none" example.com/none; echo "$DIR" example.com/p ;;
env) echo "$DIR/cache" ;;
test)
	[ "$STATUS" = 2 ] && { cat "$DIR/said"; exit 2; }
	while [ "$1" != -o ]; do shift; done
	printf '#!/bin/sh\ncat "$DIR/said"\nexit $STATUS\n' >"$2" && chmod +x "$2" ;;
esac
`
)

// TestFuzzScript: the script fails on every failure of a target except the end of its
// fuzzing time.
func TestFuzzScript(t *testing.T) {
	const (
		progress = "fuzz: elapsed: 0s, gathering baseline coverage: 0/9 completed\nfuzz: elapsed: 60s, execs: 9 (0/sec), new interesting: 1 (total: 9)\n"
		end      = "FAIL\n"
		timeIsUp = progress + "--- FAIL: FuzzX (60.03s)\n    context deadline exceeded\n" + end
	)
	for name, c := range map[string]struct {
		says   string
		status int
		passes bool
	}{
		"passed":         {progress + "PASS\n", 0, true},
		"the time is up": {timeIsUp, 1, true},
		"a finding": {progress + "--- FAIL: FuzzX (1.03s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: wrong\n    \n" +
			"    Failing input written to testdata/fuzz/FuzzX/7c\n    To re-run:\n    go test -run=FuzzX/7c\n" + end, 1, false},
		"a finding of those words": {progress + "--- FAIL: FuzzX (1.03s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: \n" +
			"    context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/7c\n" + end, 1, false},
		"a seed":            {"--- FAIL: FuzzX (0.00s)\n    --- FAIL: FuzzX/seed#0 (0.00s)\n        x_test.go:9: context deadline exceeded\n" + end, 1, false},
		"another target":    {progress + "--- FAIL: FuzzY (60.03s)\n    context deadline exceeded\n" + end, 1, false},
		"hung":              {progress + "--- FAIL: FuzzX (20.03s)\n    fuzzing process hung or terminated unexpectedly: exit status 2\n" + end, 1, false},
		"more than that":    {timeIsUp + "panic: and this\n", 1, false},
		"does not compile":  {"# example.com/p\nx.go:1:1: expected 'package'\n", notBuilt, false},
		"nothing is said":   {"", 1, false},
		"killed at the end": {timeIsUp[:len(timeIsUp)-len(end)], 137, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			said, tool := filepath.Join(dir, "said"), filepath.Join(dir, "go")
			for path, text := range map[string]string{said: c.says, tool: fakeGo, filepath.Join(dir, "x_test.go"): "func FuzzX(f *testing.F) {}\n"} {
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("./fuzz.sh", "60s", "example.com/p")
			cmd.Env = append(os.Environ(), "GO="+tool, "DIR="+dir, "STATUS="+strconv.Itoa(c.status))
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.passes {
				t.Errorf("got %v, want success %v, after\n%s", err, c.passes, out)
			}
		})
	}
}
