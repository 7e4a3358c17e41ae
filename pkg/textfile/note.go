package textfile

import (
	"fmt"
	"io"
)

// noting is a file whose reader may have something to say.
type noting struct {
	io.Reader
	note func(text string)
}

// Noting hands on what the reader of a file says about it that is no fault.
func Noting(r io.Reader, note func(text string)) io.Reader { return noting{r, note} }

// Notef says something about a file. Nobody hears it where the file is not Noting.
func Notef(file io.Reader, format string, args ...any) {
	if n, listens := file.(noting); listens {
		n.note(fmt.Sprintf(format, args...))
	}
}

// Instead reads on in another reader what the file says, such as a copy.
func Instead(file, r io.Reader) io.Reader {
	if n, listens := file.(noting); listens {
		return noting{r, n.note}
	}
	return r
}
