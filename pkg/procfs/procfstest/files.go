// Package procfstest creates conditions under which reading processes fails.
package procfstest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// WithoutFiles calls do while this process cannot open any file.
func WithoutFiles(t testing.TB, do func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	do()
}
