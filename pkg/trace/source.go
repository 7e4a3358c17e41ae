package trace

import (
	"fmt"
	"io"
	"os"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// Source is a trace file that can be read again from its beginning.
type Source struct {
	file *os.File
	name string
}

// OpenSource opens a trace file, or standard input for "-". What cannot be
// read twice is copied to a temporary file that nobody else sees.
func OpenSource(path string) (*Source, error) {
	file, name := os.Stdin, textfile.Stdin
	if path != "-" {
		var err error
		if file, err = os.Open(path); err != nil {
			return nil, err
		}
		name = path
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder, expected a file", path)
	}
	if path != "-" && info.Mode().IsRegular() {
		return &Source{file: file, name: name}, nil
	}
	copied, err := spool(file)
	if path != "-" {
		file.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("keep a copy of %s: %w", name, err)
	}
	return &Source{file: copied, name: name}, nil
}

func spool(from io.Reader) (*os.File, error) {
	file, err := os.CreateTemp("", "gfaas-trace-*")
	if err != nil {
		return nil, err
	}
	err = os.Remove(file.Name())
	if err == nil {
		_, err = io.Copy(file, from)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Close closes the file.
func (s *Source) Close() error { return s.file.Close() }

// Rows streams the trace from its beginning. It ends with an error
// that IsUnsorted tells where times are not in order.
func (s *Source) Rows(names *Names, seed uint64) (*Reader, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return Open(s.file, s.name, names, seed)
}

// Sorted reads the trace whole and sorts it by time, stably.
func (s *Source) Sorted(names *Names, seed uint64) (*List, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	rows, _, err := ReadAll(s.file, s.name, names, seed)
	return NewList(rows), err
}
