package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Load opens a file, or standard input for "-", and parses it with read. It passes read the name
// for error messages and prints the parser's notes.
func Load[T any](env *Env, path string, read func(r io.Reader, name string) (T, error)) (T, error) {
	noting := func(r io.Reader) io.Reader {
		return textfile.Noting(r, func(text string) { env.Notef("note: %s", text) }, func(text string) { env.AlwaysNotef("note: %s", text) })
	}
	if path == "-" {
		return read(noting(env.In), textfile.Stdin)
	}
	var zero T
	f, err := os.Open(path)
	if err != nil {
		return zero, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return zero, fmt.Errorf("%s is a folder, expected a file", path)
	}
	return read(noting(f), path)
}

// CheckStdin returns a usage error if more than one path is standard input.
func CheckStdin(paths ...string) error {
	if len(slices.DeleteFunc(paths, func(p string) bool { return p != "-" })) > 1 {
		return Usagef("standard input (-) can be used for one file only")
	}
	return nil
}

// LoadFunctions loads a function file. The functions' Dir is absolute; for standard input it is
// the working directory.
func LoadFunctions(env *Env, path string) ([]function.Function, error) {
	functions, err := Load(env, path, function.Parse)
	if err != nil {
		return nil, err
	}
	for i, fn := range functions {
		if functions[i].Dir, err = filepath.Abs(fn.Dir); err != nil {
			return nil, fmt.Errorf("folder of %s: %w", path, err)
		}
	}
	return functions, nil
}
