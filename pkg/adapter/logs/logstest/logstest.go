// Package logstest has a test be its own keeper of logs.
package logstest

import (
	"os"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
)

const word = "__keep-log"

// Main runs the tests, or is the keeper that they start.
func Main(m *testing.M) int {
	if len(os.Args) != 3 || os.Args[1] != word {
		return m.Run()
	}
	if err := logs.Keep(os.Stdin, os.Args[2]); err != nil {
		return 1
	}
	return 0
}

// Keeper is the command that Main is the keeper of.
func Keeper() ([]string, error) {
	self, err := os.Executable()
	return []string{self, word}, err
}
