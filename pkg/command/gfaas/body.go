package gfaas

import (
	"bytes"
	"context"
	"io"
	"os"

	"github.com/mattn/go-isatty"
)

// maxKept is how much of a body is read before it is sent: it has a known
// length then, which simple servers need, and can be sent again when an
// instance refuses it. Longer bodies are streamed.
const maxKept = 16 << 20

// body is what an invocation sends.
type body struct {
	head []byte
	rest io.Reader // nil when head is all
}

// readBody reads standard input, which is no body at all when it is a
// terminal. It returns early when ctx ends, though the input does not.
func readBody(ctx context.Context, in io.Reader) (body, error) {
	if f, ok := in.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		return body{}, nil
	}
	type result struct {
		body body
		err  error
	}
	done := make(chan result, 1)
	go func() {
		head, err := io.ReadAll(io.LimitReader(in, maxKept))
		b := body{head: head}
		if len(head) == maxKept {
			b.rest = struct{ io.Reader }{in} // hides Close: the input is not the request's to close
		}
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.body, r.err
	case <-ctx.Done():
		return body{}, ctx.Err()
	}
}

// reader is the body from its start; once the rest of a long one has been
// read, that part is gone.
func (b body) reader() io.Reader {
	if b.rest == nil {
		return bytes.NewReader(b.head)
	}
	return io.MultiReader(bytes.NewReader(b.head), b.rest)
}
