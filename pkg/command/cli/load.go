package cli

import (
	"io"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// Load opens a file, or standard input for "-", has it read, and tells the user
// what its reader notes.
func Load[T any](env *Env, path string, read func(r io.Reader, name string) (T, error)) (T, error) {
	return textfile.Load(path, func(r io.Reader, name string) (T, error) {
		return read(textfile.Noting(r, func(text string) { env.Notef("note: %s", text) }), name)
	})
}
