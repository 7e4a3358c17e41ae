package pkg_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestFuzzScript: that the time was up is no failure, and every other one is.
func TestFuzzScript(t *testing.T) {
	const (
		progress = "fuzz: elapsed: 0s, gathering baseline coverage: 0/9 completed\nfuzz: elapsed: 60s, execs: 9 (0/sec), new interesting: 1 (total: 9)\n"
		end      = "FAIL\nexit status 1\nFAIL\texample.com/p\t60.052s\n"
		timeIsUp = progress + "--- FAIL: FuzzX (60.03s)\n    context deadline exceeded\n" + end
	)
	for name, c := range map[string]struct {
		says   string
		status int
		passes bool
	}{
		"passed":         {progress + "PASS\nok  \texample.com/p\t60.052s\n", 0, true},
		"the time is up": {timeIsUp, 1, true},
		"a finding": {progress + "--- FAIL: FuzzX (1.03s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: wrong\n    \n" +
			"    Failing input written to testdata/fuzz/FuzzX/7c\n    To re-run:\n    go test -run=FuzzX/7c\n" + end, 1, false},
		"a finding of those words": {progress + "--- FAIL: FuzzX (1.03s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: \n" +
			"    context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/7c\n" + end, 1, false},
		"a seed":            {"--- FAIL: FuzzX (0.00s)\n    --- FAIL: FuzzX/seed#0 (0.00s)\n        x_test.go:9: context deadline exceeded\n" + end, 1, false},
		"another target":    {progress + "--- FAIL: FuzzY (60.03s)\n    context deadline exceeded\n" + end, 1, false},
		"hung":              {progress + "--- FAIL: FuzzX (20.03s)\n    fuzzing process hung or terminated unexpectedly: exit status 2\n" + end, 1, false},
		"more than that":    {timeIsUp + "panic: and this\n", 1, false},
		"does not compile":  {"# example.com/p\nx.go:1:1: expected 'package'\nFAIL\texample.com/p [build failed]\n", 2, false},
		"nothing is said":   {"", 1, false},
		"killed at the end": {timeIsUp[:len(timeIsUp)-len(end)], 137, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			said, tool := filepath.Join(dir, "said"), filepath.Join(dir, "go")
			for path, text := range map[string]string{said: c.says, tool: "#!/bin/sh\ncat \"$SAID\"\nexit $STATUS\n"} {
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("./fuzz.sh", "example.com/p", "FuzzX", "60s")
			cmd.Env = append(os.Environ(), "GO="+tool, "SAID="+said, "STATUS="+strconv.Itoa(c.status))
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.passes {
				t.Errorf("%v after\n%s", err, out)
			}
		})
	}
}
