package cli

import (
	"bytes"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Widths of the parts of a progress line, in columns.
const (
	wideBar   = 40
	narrowBar = 10
	besideBar = 36             // percentage, counts and times, to the right of the bar
	wideLine  = besideBar + 55 // with a description of at least 50 columns
)

// columns returns the width of the terminal, or 0 if it is unknown or w is not a terminal.
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

// frames writes lines that replace each other. It cuts them to the terminal's width, because a
// carriage return cannot replace a line that has wrapped.
type frames struct {
	to      io.Writer
	columns int
}

func (f frames) Write(b []byte) (int, error) {
	var visible []byte
	for line := range bytes.SplitAfterSeq(b, []byte("\r")) {
		column := 0
		for unread := line; len(unread) > 0; {
			r, size := utf8.DecodeRune(unread)
			if column < f.columns-1 || r == '\r' || r == '\n' {
				visible = append(visible, unread[:size]...)
			}
			unread = unread[size:]
			column++
		}
	}
	if _, err := f.to.Write(visible); err != nil {
		return 0, err
	}
	return len(b), nil
}
