package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/gfaas/gfaas/pkg/instance"
)

// maxTail bounds what Logs reads of a log, in bytes.
const maxTail = 1 << 20

// Logs returns the last lines of the instance's log, at most a mebibyte; none
// when there is no log.
func (r *Runtime) Logs(_ context.Context, h instance.Handle, lines int) ([]byte, error) {
	f, err := os.Open(h.LogPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	text := make([]byte, min(size, maxTail))
	n, err := f.ReadAt(text, size-int64(len(text)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return lastLines(text[:n], lines), nil
}

// lastLines cuts text to its last n lines.
func lastLines(text []byte, n int) []byte {
	if n <= 0 {
		return nil
	}
	end := len(text)
	if end > 0 && text[end-1] == '\n' {
		end--
	}
	for range n {
		end = bytes.LastIndexByte(text[:end], '\n')
		if end < 0 {
			return text
		}
	}
	return text[end+1:]
}
