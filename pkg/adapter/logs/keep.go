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
	chunk = 64 << 10 // as much as a pipe holds
	// ahead is how many chunks wait for a disk that is slow.
	ahead = 16
	// slow is how long who prints waits for the disk then, once: until it has taken
	// something, the rest is lost.
	slow = time.Second
)

// Keep reads in to its end and keeps it in the log in that folder, which is there.
// The error says that it could not begin.
func Keep(in io.Reader, dir string) error {
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
	keep(in, w.take, slow)
	w.finish()
	return nil
}

// piece is something that was printed, and how much before it was lost.
type piece struct {
	at   time.Time
	text []byte
	lost int64
}

// keep hands what it reads to take, which may be slow, in order.
func keep(in io.Reader, take func(piece), slow time.Duration) {
	pieces, free, done := make(chan piece, ahead), make(chan []byte, ahead+1), make(chan struct{})
	go func() {
		defer close(done)
		for p := range pieces {
			take(p)
			select {
			case free <- p.text[:cap(p.text)]:
			default:
			}
		}
	}()
	var buffer []byte
	var lost int64
	for err := error(nil); err == nil; {
		if buffer == nil {
			select {
			case buffer = <-free:
			default:
				buffer = make([]byte, chunk)
			}
		}
		var n int
		if n, err = in.Read(buffer); n == 0 {
			continue
		}
		patience := slow
		if lost > 0 { // it was waited for in vain
			patience = 0
		}
		if offer(pieces, piece{time.Now(), buffer[:n], lost}, patience) {
			buffer, lost = nil, 0
		} else {
			lost += int64(n)
		}
	}
	if lost > 0 {
		offer(pieces, piece{at: time.Now(), lost: lost}, slow)
	}
	close(pieces)
	<-done
}

// offer hands a piece on, if that can be done in time.
func offer(to chan<- piece, p piece, patience time.Duration) bool {
	select {
	case to <- p:
		return true
	default:
	}
	if patience == 0 {
		return false
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case to <- p:
		return true
	case <-late.C:
		return false
	}
}

// writer writes the files of a log.
type writer struct {
	root *os.Root
	max  int64

	file *os.File // current
	size int64    // of it

	begun []byte    // a line whose end has not come
	since time.Time // when it began

	lost  int64 // bytes that are missing before what comes next
	cause error // why
	text  []byte
}

var errSlow = errors.New("the disk was too slow")

// open goes on with the log that is there, or begins it.
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

// take writes the lines of a piece, as far as they have ended.
func (w *writer) take(p piece) {
	if p.lost > 0 {
		w.lost, w.cause = w.lost+p.lost, errSlow
	}
	w.text = w.text[:0]
	for rest := p.text; len(rest) > 0; {
		if len(w.begun) == 0 {
			w.since = p.at
		}
		line, after, ended := bytes.Cut(rest, []byte{'\n'})
		if room := ports.MaxLogLine - len(w.begun); len(line) > room {
			line, after, ended = rest[:room], rest[room:], false
		}
		w.begun = append(w.begun, line...)
		rest = after
		switch {
		case ended:
			w.line(whole)
		case len(rest) > 0 || len(w.begun) == ports.MaxLogLine:
			w.line(partial)
		}
	}
	w.write(int64(len(p.text)))
}

func (w *writer) line(tag byte) {
	w.text = appendLine(w.text, w.since, w.begun, tag)
	w.begun = w.begun[:0]
}

// finish writes the line that nobody ended.
func (w *writer) finish() {
	w.text = w.text[:0]
	n := len(w.begun)
	if n > 0 {
		w.line(whole)
	}
	w.write(int64(n))
	if w.lost > 0 { // the disk may have room again
		w.text = w.text[:0]
		w.write(0)
	}
}

// write writes w.text, which n bytes were printed for, all of it or nothing, and
// before it what is missing.
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
		if err != nil { // nothing is torn
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

// reason is an error without the name of the file.
func reason(err error) error {
	for _, known := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.ENOENT} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// turn makes room for n bytes: current becomes previous when it is full. There
// is a current at any time.
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
