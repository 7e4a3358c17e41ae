package hooktest

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain lets more tests run in parallel than there are processors, because these
// tests mostly wait. The command line has precedence.
func TestMain(m *testing.M) {
	if text, witness := os.LookupEnv(witnessKey); witness {
		if err := runWitness(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if _, sleeper := os.LookupEnv(sleepKey); sleeper {
		sleepOn()
		return
	}
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}
