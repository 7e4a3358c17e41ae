package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Apart refuses a second output where the result goes, where nobody could tell
// the two apart, or the later would replace the earlier. Flag is the second
// one's, without dashes.
func (env *Env) Apart(flag, path string) error {
	own := env.OutFile
	switch {
	case path == "-" && (own == "" || own == "-"):
		return Usagef("--%s -: the result goes to standard output, expected another file, or --out-file for the result", flag)
	case path == "" || path == "-" || own == "" || own == "-":
		return nil
	}
	first, replace := Target(own)
	second, _ := Target(path)
	if replace && same(first, second) {
		return Usagef("--%s %s: the result goes to that file, expected another", flag, path)
	}
	return nil
}

// same tells whether two names are of one file, or would be of the same new one.
func same(a, b string) bool {
	one, err := os.Stat(a)
	other, failed := os.Stat(b)
	if err == nil && failed == nil {
		return os.SameFile(one, other)
	}
	full, _ := filepath.Abs(a)
	too, _ := filepath.Abs(b)
	return err != nil && failed != nil && full == too
}

// WriteTo writes a second output to a file, as Write does to --out-file.
func (env *Env) WriteTo(path string, data []byte) error {
	if path == "" || path == "-" {
		_, err := env.Out.Write(data)
		return err
	}
	target, replace := Target(path)
	if !replace {
		return os.WriteFile(target, data, 0o644)
	}
	return named(path, renameio.WriteFile(target, data, 0o644))
}

// named is the error of a write under the name the user gave: the file was
// written under another, which is gone.
func named(path string, err error) error {
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

// Pending is a second output too large for memory. Nothing is at its path
// until it is committed.
type Pending struct {
	*os.File
	commit, cleanup func() error
}

// Create begins a second output: whole or not at all, and what cannot be
// replaced (standard output, a device) gets a copy at the end.
func (env *Env) Create(path string) (*Pending, error) {
	target, replace := "", false
	if path != "-" {
		target, replace = Target(path)
	}
	if replace {
		file, err := renameio.NewPendingFile(target, renameio.WithPermissions(0o644))
		if err != nil {
			return nil, named(path, err)
		}
		return &Pending{File: file.File, commit: file.CloseAtomicallyReplace, cleanup: file.Cleanup}, nil
	}
	file, err := os.CreateTemp("", "gfaas-*")
	if err != nil {
		return nil, err
	}
	p := &Pending{File: file, commit: func() error { return env.copyTo(target, file) }}
	p.cleanup = func() error {
		_ = file.Close()
		return os.Remove(file.Name())
	}
	return p, nil
}

// Commit puts the output in its place.
func (p *Pending) Commit() error { return p.commit() }

// Cleanup removes what was not committed.
func (p *Pending) Cleanup() { _ = p.cleanup() }

// copyTo copies a file from its beginning, to standard output if the target is
// empty.
func (env *Env) copyTo(target string, file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if target == "" {
		_, err := io.Copy(env.Out, file)
		return err
	}
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, file); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
