// Package textfile is what the readers of the project's files share: how a
// fault in a file is told. Nothing here or in the formats opens one.
package textfile

import "fmt"

// Stdin is the name that messages give to standard input.
const Stdin = "<stdin>"

// MaxLine is the longest line a file may have, in bytes. It is far above what
// any of the formats needs and keeps a damaged file from being quoted back.
const MaxLine = 1 << 20

// Fault is what is wrong at one place of a file.
type Fault struct {
	File  string
	Line  int
	Where string // the column, the key, or the path to it; empty when the fault is not one's
	What  string // what is wrong, and what was expected
}

func (f *Fault) Error() string {
	if f.Where == "" {
		return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.What)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Where, f.What)
}
