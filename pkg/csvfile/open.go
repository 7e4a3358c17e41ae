package csvfile

import (
	"fmt"
	"io"
	"os"
)

// Load opens a file, or standard input for "-", and has it read under the name
// that messages give it.
func Load[T any](path string, read func(r io.Reader, name string) (T, error)) (T, error) {
	if path == "-" {
		return read(os.Stdin, Stdin)
	}
	var none T
	f, err := os.Open(path)
	if err != nil {
		return none, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return none, fmt.Errorf("%s is a folder, expected a file", path)
	}
	return read(f, path)
}
