// Package outfile handles the files that commands write: it resolves the path that
// the user gave, and names that path in errors instead of a temporary file's.
//
// Commands and package measure use it; what they write replaces a file whole or
// not at all.
package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Target follows symbolic links and returns the path to write. It reports
// whether that path may be replaced by renaming another file over it, which is
// false for devices, pipes, everything below /dev and /proc, and loops of links.
func Target(path string) (target string, replace bool) {
	const maxLinks = 40
	for range maxLinks {
		full, err := filepath.Abs(path)
		if err != nil || strings.HasPrefix(full, "/dev/") || strings.HasPrefix(full, "/proc/") {
			return path, false
		}
		next, err := os.Readlink(path)
		if err != nil {
			info, err := os.Stat(path)
			return path, err != nil || info.Mode().IsRegular()
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(path), next)
		}
		path = next
	}
	return path, false // a loop: opening it fails
}

// CheckCreatable returns an error if a file cannot be written at the path. It
// creates and removes a temporary file next to it, so that a command can fail
// before its work instead of after it. Empty paths and "-" pass.
func CheckCreatable(path string) error {
	if path == "" || path == "-" {
		return nil
	}
	target, replace := Target(path)
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder, expected a file", path)
	}
	if !replace {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return WithPath(path, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// WithPath returns err with the path that the user gave in place of the
// temporary file's, if err is about a file; else it returns err itself.
func WithPath(path string, err error) error {
	var at *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &at):
		return &fs.PathError{Op: "write", Path: path, Err: at.Err}
	case errors.As(err, &link):
		return &fs.PathError{Op: "write", Path: path, Err: link.Err}
	}
	return err
}
