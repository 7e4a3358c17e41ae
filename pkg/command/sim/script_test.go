package sim

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gfaas-sim": func() { os.Exit(Main()) }})
}

func TestScripts(t *testing.T) {
	clitest.Run(t, nil)
}
