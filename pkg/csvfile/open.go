package csvfile

import (
	"io"
	"os"
)

// Load opens a file, or standard input for "-", and has it read under the name
// that messages give it.
func Load[T any](path string, read func(r io.Reader, name string) (T, error)) (T, error) {
	if path == "-" {
		return read(os.Stdin, Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer f.Close()
	return read(f, path)
}
