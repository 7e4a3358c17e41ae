package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	chunkSize = 64 << 10 // the default capacity of a pipe
	// maxChunks is how many chunks are buffered for a slow disk.
	maxChunks = 16
	// slow is how long the keeper waits when the buffer is full. After one such wait, it
	// discards further output until the disk accepts a chunk.
	slow = time.Second
)

// Copy copies in, until its end, to the log in an existing folder. It returns an error only
// if it cannot start.
func Copy(in io.Reader, dir string) error {
	root, err := open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := &writer{root: root, max: MaxFile}
	if err := w.open(); err != nil {
		return err
	}
	defer func() { _ = w.file.Close() }()
	copyChunks(in, w.writeLines, slow)
	w.finish()
	return nil
}

// chunk is a part of the output, and the number of bytes discarded before it.
type chunk struct {
	at   time.Time
	text []byte
	lost int64
}

// copyChunks reads in to its end and passes each chunk to write, in order. write may be slow.
func copyChunks(in io.Reader, write func(chunk), slow time.Duration) {
	chunks, done := make(chan chunk, maxChunks), make(chan struct{})
	go func() {
		defer close(done)
		for c := range chunks {
			write(c)
		}
	}()
	buffer := make([]byte, chunkSize)
	var lost int64
	for err := error(nil); err == nil; {
		var n int
		if n, err = in.Read(buffer); n == 0 {
			continue
		}
		patience := slow
		if lost > 0 { // the previous offer timed out
			patience = 0
		}
		if offer(chunks, chunk{time.Now(), bytes.Clone(buffer[:n]), lost}, patience) {
			lost = 0
		} else {
			lost += int64(n)
		}
	}
	if lost > 0 {
		offer(chunks, chunk{at: time.Now(), lost: lost}, slow)
	}
	close(chunks)
	<-done
}

// offer sends a chunk if the receiver accepts it within patience, and reports whether it
// did.
func offer(to chan<- chunk, c chunk, patience time.Duration) bool {
	select {
	case to <- c:
		return true
	default:
	}
	if patience == 0 {
		return false
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case to <- c:
		return true
	case <-late.C:
		return false
	}
}

// writer writes the files of a log.
type writer struct {
	root *os.Root
	max  int64

	file *os.File // the open current file
	size int64    // of file

	begun []byte    // an incomplete line
	since time.Time // when begun was started

	lost  int64 // bytes missing before the next line
	cause error // why they are missing
	text  []byte
}

var errSlow = errors.New("the disk was too slow")

// open opens or creates the current file, to append to it.
func (w *writer) open() error {
	f, err := w.root.OpenFile(currentFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	w.file, w.size = f, info.Size()
	return nil
}

// writeLines writes the complete lines of a chunk.
func (w *writer) writeLines(c chunk) {
	if c.lost > 0 {
		w.lost, w.cause = w.lost+c.lost, errSlow
	}
	w.text = w.text[:0]
	for text := c.text; len(text) > 0; {
		if len(w.begun) == 0 {
			w.since = c.at
		}
		line, after, ended := bytes.Cut(text, []byte{'\n'})
		if room := ports.MaxLogLine - len(w.begun); len(line) > room {
			line, after, ended = text[:room], text[room:], false
		}
		w.begun = append(w.begun, line...)
		text = after
		switch {
		case ended:
			w.line(whole)
		case len(text) > 0 || len(w.begun) == ports.MaxLogLine:
			w.line(partial)
		}
	}
	w.write(int64(len(c.text)))
}

func (w *writer) line(tag byte) {
	w.text = appendLine(w.text, w.since, w.begun, tag)
	w.begun = w.begun[:0]
}

// finish writes the last, incomplete line.
func (w *writer) finish() {
	w.text = w.text[:0]
	n := len(w.begun)
	if n > 0 {
		w.line(whole)
	}
	w.write(int64(n))
	if w.lost > 0 { // the disk may have space again
		w.text = w.text[:0]
		w.write(0)
	}
}

// write appends w.text, which represents n bytes of output, to the file, in full or not at
// all. If output is missing before it, write adds a note first.
func (w *writer) write(n int64) {
	text := w.text
	if w.lost > 0 {
		note := fmt.Appendf(nil, "gfaas: %d bytes are missing here: %v", w.lost, w.cause)
		text = append(appendLine(nil, time.Now(), note, whole), text...)
	}
	if len(text) == 0 {
		return
	}
	err := w.turn(int64(len(text)))
	if err == nil {
		_, err = w.file.Write(text)
		if err != nil { // leave no partial line
			_ = w.file.Truncate(w.size)
		}
	}
	if err != nil {
		w.lost, w.cause = w.lost+n, reason(err)
		return
	}
	w.size += int64(len(text))
	w.lost, w.cause = 0, nil
}

// reason returns an error without the file's name.
func reason(err error) error {
	for _, known := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.ENOENT} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// turn makes room for n bytes: if the current file is full, it renames it to previous and
// starts a new one. The name current exists at all times.
func (w *writer) turn(n int64) error {
	if w.size == 0 || w.size+n <= w.max {
		return nil
	}
	if err := w.root.Remove(nextFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	next, err := w.root.OpenFile(nextFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = w.root.Remove(previousFile)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = w.root.Link(currentFile, previousFile)
	}
	if err == nil {
		err = w.root.Rename(nextFile, currentFile)
	}
	if err != nil {
		_ = next.Close()
		return err
	}
	_ = w.file.Close()
	w.file, w.size = next, 0
	return nil
}
