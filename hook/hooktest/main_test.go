package hooktest

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run side by side than there are processors: those
// that do mostly wait. The command line still decides.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}
