// Package owndir opens folders in which nobody else can have put anything.
package owndir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Hint says what to do about a run directory that cannot be used.
const Hint = "set GFAAS_RUN_DIR to a folder of yours that others cannot write to"

// Error says why a folder is not used. It is an fs.ErrPermission.
type Error struct {
	Path, Why string
}

func (e *Error) Error() string { return e.Path + " " + e.Why }

// Is reports whether target is fs.ErrPermission.
func (e *Error) Is(target error) bool { return target == fs.ErrPermission }

// Open opens a folder that is the user's own, that nobody else can write to, and
// that is no symbolic link. The error is an *Error where it is another, and an
// fs.ErrNotExist where there is none. What is then done by the *os.Root is done
// in the folder that was looked at, whatever has its path by then.
func Open(path string) (*os.Root, error) {
	path = filepath.Clean(path) // a slash at the end would follow a link
	there, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := check(path, there); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	if err == nil && !os.SameFile(there, opened) {
		err = &Error{path, "was exchanged for another folder just now"}
	}
	if err == nil {
		err = check(path, opened)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

// Ensure makes the folder and those above it, of mode 0700, where they are not
// there, and says what Open says of it. It is for those who go on by the path:
// only root and the owners of the folders above can put another in its place.
func Ensure(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	root, err := Open(path)
	if err != nil {
		return err
	}
	return root.Close()
}

func check(path string, info fs.FileInfo) error {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return &Error{path, "is a symbolic link"}
	case !info.IsDir():
		return &Error{path, "is no folder"}
	case owner != os.Geteuid():
		return &Error{path, fmt.Sprintf("belongs to user %d, not to you", owner)}
	case info.Mode().Perm()&0o022 != 0:
		return &Error{path, fmt.Sprintf("can be written to by others (mode %04o)", info.Mode().Perm())}
	}
	return nil
}
