package gfaas

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/mattn/go-isatty"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// maxKept is how much of a body is read before it is sent: it has a known
// length then, which simple servers need, and can be sent again when an
// instance refuses it. Longer bodies are streamed, a file's with its length.
const maxKept = 16 << 20

// body is what an invocation sends.
type body struct {
	head   []byte
	rest   io.Reader // nil when head is all
	length int64     // of all of it, when rest is that of a file; else 0
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
			if left := remaining(in); left > 0 {
				b.rest, b.length = io.LimitReader(in, left), int64(len(head))+left
			}
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

// remaining is how much of a file has not been read; 0 of anything else.
func remaining(in io.Reader) int64 {
	f, ok := in.(*os.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return info.Size() - at
}

// call is one with this body under these headers, and what gives its body from
// its start again, if that can be had.
func (b body) call(header http.Header) (c ports.Call, again func() io.Reader) {
	if b.length > 0 && header.Get("Content-Length") == "" {
		header = header.Clone()
		header.Set("Content-Length", strconv.FormatInt(b.length, 10))
	}
	if b.rest == nil {
		again = b.reader
	}
	return ports.Call{Header: header, Body: b.reader()}, again
}

// reader is the body from its start; once the rest of a long one has been
// read, that part is gone.
func (b body) reader() io.Reader {
	if b.rest == nil {
		return bytes.NewReader(b.head)
	}
	return io.MultiReader(bytes.NewReader(b.head), b.rest)
}
