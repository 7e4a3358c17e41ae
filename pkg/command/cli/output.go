package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/outfile"
)

// Write sends a command's output to standard output or, whole or not at all,
// to --out-file.
func (env *Env) Write(data []byte) error { return env.WriteTo(env.OutFile, data) }

// WriteTo writes a second output to a file, as Write does to --out-file.
func (env *Env) WriteTo(path string, data []byte) error {
	if path == "" || path == "-" {
		_, err := env.Out.Write(data)
		return err
	}
	target, replace := outfile.Target(path)
	if !replace {
		return os.WriteFile(target, data, 0o644)
	}
	return outfile.WithPath(path, renameio.WriteFile(target, data, 0o644))
}

// Emit writes what print prints, as Write does.
func (env *Env) Emit(print func(io.Writer) error) error {
	var buf bytes.Buffer
	if err := print(&buf); err != nil {
		return err
	}
	return env.Write(buf.Bytes())
}

// CheckOutput refuses a second output that would go where the result goes:
// standard output, or the file of --out-file by whatever name. Flag is the
// second output's, without dashes. The error is one of usage.
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

// sameFile says whether two paths lead to one file; of files that do not exist
// yet, whether they are one path.
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

// Pending is a second output too large for memory. Nothing is at its path
// until it is committed.
type Pending struct {
	*os.File
	// Remains says that an end without Cleanup leaves a file behind.
	Remains         bool
	commit, cleanup func() error
}

// Scratch is a file that lives as long as it is open, and no longer however the
// program ends.
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

// Create begins a second output: whole or not at all, and what cannot be
// replaced (standard output, a device) gets a copy at the end.
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
	return &Pending{File: file, commit: func() error { return env.copyTo(target, file) }, cleanup: file.Close}, nil
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
