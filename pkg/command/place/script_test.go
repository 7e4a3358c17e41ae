package place

import (
	"os"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
)

func TestMain(m *testing.M) {
	testscript.Main(browsertest.Tests{M: m}, map[string]func(){"gfaas-place": func() { os.Exit(Main()) }})
}

func TestScripts(t *testing.T) {
	clitest.Run(t, map[string]func(*testscript.TestScript, bool, []string){"long": long, "junk": junk})
}

// long writes one line of N bytes to a file: long FILE N.
func long(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	line := make([]byte, n)
	for i := range line {
		line[i] = 'a'
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), line, 0o600))
}

// junk writes bytes that are not text to a file: junk FILE.
func junk(ts *testscript.TestScript, _ bool, args []string) {
	data := make([]byte, 4096)
	state := uint32(1)
	for i := range data {
		state = state*1664525 + 1013904223
		data[i] = byte(state >> 24)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o600))
}
