// Package logstest lets a test binary act as its own keeper of logs: TestMain calls Main, and the
// test passes the command Keeper to logs.Start.
package logstest

import (
	"os"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
)

const word = "__keep-log"

// Main runs the tests, or Keep if the process was started as Keeper says.
func Main(m *testing.M) int {
	if len(os.Args) != 3 || os.Args[1] != word {
		return m.Run()
	}
	if err := logs.Copy(os.Stdin, os.Args[2]); err != nil {
		return 1
	}
	return 0
}

// Keeper returns the command that makes Main run Keep.
func Keeper() ([]string, error) {
	self, err := os.Executable()
	return []string{self, word}, err
}
