package cli

import (
	"bytes"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// What a line of progress takes, in columns.
const (
	wideBar   = 40
	narrowBar = 10
	besideBar = 36             // percentage, counts and times
	wideLine  = besideBar + 55 // beside a wide bar and 50 or more of what is done
)

// columns returns the width of the terminal that is written to; 0 if it is not known.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// frames writes lines that replace each other, cut to the terminal's width: one that
// goes on in the next line could not be replaced.
type frames struct {
	to      io.Writer
	columns int
}

func (f frames) Write(b []byte) (int, error) {
	var out []byte
	for line := range bytes.SplitAfterSeq(b, []byte("\r")) {
		column := 0
		for rest := line; len(rest) > 0; {
			r, size := utf8.DecodeRune(rest)
			if column < f.columns-1 || r == '\r' || r == '\n' {
				out = append(out, rest[:size]...)
			}
			rest = rest[size:]
			column++
		}
	}
	if _, err := f.to.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}
