package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/outfile"
)

// Write writes a command's output to standard output or, atomically, to --out-file.
func (env *Env) Write(data []byte) error { return env.WriteTo(env.OutFile, data) }

// WriteTo writes a second output to a file, or to standard output if the path is "" or "-". It
// replaces regular files atomically.
func (env *Env) WriteTo(path string, data []byte) error {
	mode := fs.FileMode(0o644)
	if env.Private {
		mode = 0o600
	}
	if path == "" || path == "-" {
		_, err := env.Out.Write(data)
		return err
	}
	target, replace := outfile.Target(path)
	if !replace {
		return os.WriteFile(target, data, mode)
	}
	return outfile.WithPath(path, renameio.WriteFile(target, data, mode))
}

// Emit collects the output of print and writes it with Write if print succeeds.
func (env *Env) Emit(print func(io.Writer) error) error {
	var buf bytes.Buffer
	if err := print(&buf); err != nil {
		return err
	}
	return env.Write(buf.Bytes())
}

// CheckOutput returns a usage error if a second output has the same destination as the result:
// standard output, or the file of --out-file, possibly under another name. The flag is that of the
// second output, without dashes.
func (env *Env) CheckOutput(flag, path string) error {
	own := env.OutFile
	switch {
	case path == "-" && (own == "" || own == "-"):
		return Usagef("--%s -: the result goes to standard output, expected another file, or --out-file for the result", flag)
	case path == "" || path == "-" || own == "" || own == "-":
		return nil
	}
	first, replace := outfile.Target(own)
	second, _ := outfile.Target(path)
	if replace && sameFile(first, second) {
		return Usagef("--%s %s: the result goes to that file, expected another", flag, path)
	}
	return nil
}

// sameFile reports whether two paths lead to the same file. If neither file exists, it compares the
// absolute paths.
func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return os.SameFile(infoA, infoB)
	}
	absA, _ := filepath.Abs(a)
	absB, _ := filepath.Abs(b)
	return errA != nil && errB != nil && absA == absB
}

// Pending is a second output that is too large for memory. The file appears at its path when
// Commit succeeds.
type Pending struct {
	*os.File
	// Remains is true if a program that ends without Cleanup leaves a temporary file behind.
	Remains         bool
	commit, cleanup func() error
}

// Scratch returns a temporary file without a name. The kernel frees it when it is closed, even if
// the program crashes.
func Scratch() (*os.File, error) {
	file, err := os.CreateTemp("", "gfaas-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Create begins a second output. A regular file is replaced atomically; standard output and devices
// receive a copy on Commit.
func (env *Env) Create(path string) (*Pending, error) {
	target, replace := "", false
	if path != "-" {
		target, replace = outfile.Target(path)
	}
	if replace {
		file, err := renameio.NewPendingFile(target, renameio.WithPermissions(0o644))
		if err != nil {
			return nil, outfile.WithPath(path, err)
		}
		return &Pending{File: file.File, Remains: true, commit: file.CloseAtomicallyReplace, cleanup: file.Cleanup}, nil
	}
	file, err := Scratch()
	if err != nil {
		return nil, err
	}
	return &Pending{File: file, commit: func() error { return copyFile(env.Out, target, file) }, cleanup: file.Close}, nil
}

// Commit moves or copies the output to its destination.
func (p *Pending) Commit() error { return p.commit() }

// Cleanup removes an output that was not committed.
func (p *Pending) Cleanup() { _ = p.cleanup() }

// copyFile copies the whole file to the target, or to standard output if the target is empty.
func copyFile(stdout io.Writer, target string, file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if target == "" {
		_, err := io.Copy(stdout, file)
		return err
	}
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, file)
	return errors.Join(err, out.Close())
}
