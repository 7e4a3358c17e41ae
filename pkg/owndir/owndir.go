// Package owndir opens directories that only the current user can write to, such as run directories (Open), or makes them
// (Ensure). It returns an Error for others. Sync makes changes of a directory durable.
package owndir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Hint tells users how to proceed if their run directory cannot be used.
const Hint = "set GFAAS_RUN_DIR to a folder of yours that others cannot write to"

// Error describes why a directory is not trusted. It matches fs.ErrPermission.
type Error struct {
	Path, Why string
}

func (e *Error) Error() string { return e.Path + " " + e.Why }

// Is reports whether target is fs.ErrPermission.
func (e *Error) Is(target error) bool { return target == fs.ErrPermission }

// RunDirError reports that a run directory cannot be created or used.
type RunDirError struct {
	Err    error
	Remedy string // what to do instead of setting the variable; empty if nothing else is known
}

func (e *RunDirError) Error() string { return "run directory: " + e.Err.Error() }
func (e *RunDirError) Unwrap() error { return e.Err }

// Unavailable returns true, which selects the exit status.
func (e *RunDirError) Unavailable() bool { return true }

// Hint returns Remedy or, if that is empty, names the variable that selects another directory.
func (e *RunDirError) Hint() string { return cmp.Or(e.Remedy, Hint) }

// Open opens a directory that the current user owns, that other users cannot write to, and that is
// not a symbolic link. For any other directory it returns an *Error, and for a missing one an error
// that matches fs.ErrNotExist. Operations on the returned *os.Root apply to the directory that was
// checked, even if its path refers to another one later.
func Open(path string) (*os.Root, error) {
	path = filepath.Clean(path) // a trailing slash would follow a link
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
		err = &Error{path, "was replaced by another folder while it was opened"}
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

// Ensure creates the directory and its missing parents with mode 0700, and returns an error in the
// same cases as Open. It is for callers that use the path afterwards: only root and the owners of the
// parent directories can replace the directory.
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
		return &Error{path, "is not a folder"}
	case owner != os.Geteuid():
		return &Error{path, fmt.Sprintf("is owned by uid %d, expected %d", owner, os.Geteuid())}
	case info.Mode().Perm()&0o022 != 0:
		return &Error{path, fmt.Sprintf("is writable by other users (mode %04o)", info.Mode().Perm())}
	}
	return nil
}

// Sync makes the entries of a directory durable, for example after a file was created in it or renamed.
func Sync(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
