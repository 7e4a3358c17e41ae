package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// lookEvery is how often a log is looked at that is followed.
const lookEvery = 100 * time.Millisecond

// Read reads the log in that folder; none is there where there is no folder.
// Following it ends when it has no keeper any more.
func Read(ctx context.Context, dir string, o ports.LogOptions) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		root, err := open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil {
			defer root.Close()
			r := &reader{root: root, options: o, yield: yield}
			err = r.run(ctx)
			closeAll(r.files)
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(ports.LogLine{}, err)
		}
	}
}

// errEnough is of a caller who wants no more.
var errEnough = errors.New("enough")

type reader struct {
	root    *os.Root
	options ports.LogOptions
	yield   func(ports.LogLine, error) bool

	files []*os.File // to be read, the first from where it is
	begun []byte     // a line of which the rest has not been written yet
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (r *reader) run(ctx context.Context) error {
	if err := r.open(); err != nil || len(r.files) == 0 {
		return err
	}
	if err := r.seek(); err != nil {
		return err
	}
	in := bufio.NewReaderSize(r.files[0], maxRecord)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		// Asked before: what was written last is read.
		ended := !r.options.Follow || !kept(r.root)
		after, err := r.after()
		if err != nil {
			return err
		}
		if err := r.drain(ctx, in); err != nil {
			closeAll(after)
			return err
		}
		switch {
		case len(after) > 0:
			_ = r.files[0].Close()
			r.files, r.begun = after, r.begun[:0]
			in.Reset(r.files[0])
		case ended:
			return nil
		default:
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}
}

// drain tells the lines of a file up to where it ends by now.
func (r *reader) drain(ctx context.Context, in *bufio.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := in.ReadSlice('\n')
		r.begun = append(r.begun, more...)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull): // full: it is damaged
			return err
		}
		err = r.tell(r.begun)
		r.begun = r.begun[:0]
		if err != nil {
			return err
		}
	}
}

// tell yields a line.
func (r *reader) tell(record []byte) error {
	line := parseLine(record)
	if line.Time.Before(r.options.Since) {
		return nil
	}
	if !r.yield(line, nil) {
		return errEnough
	}
	return nil
}

// open opens the files that are there, the oldest first.
func (r *reader) open() error {
	current, err := r.look(currentFile)
	if current == nil || err != nil {
		return err
	}
	r.files = []*os.File{current}
	previous, err := r.look(previousFile)
	if previous == nil || err != nil {
		return err
	}
	if same(previous, current) { // it has become that just now
		return previous.Close()
	}
	r.files = []*os.File{previous, current}
	return nil
}

// look opens a file, nil if it is not there.
func (r *reader) look(name string) (*os.File, error) {
	f, err := r.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

func same(a, b *os.File) bool {
	first, err := a.Stat()
	if err != nil {
		return false
	}
	second, err := b.Stat()
	return err == nil && os.SameFile(first, second)
}

// seek drops what is before the lines that are wanted.
func (r *reader) seek() error {
	if r.options.Tail < 0 {
		return nil
	}
	wanted := r.options.Tail
	for n := len(r.files) - 1; n >= 0; n-- {
		at, found, err := lastLines(r.files[n], wanted)
		if err != nil {
			return err
		}
		if _, err := r.files[n].Seek(at, io.SeekStart); err != nil {
			return err
		}
		if wanted -= found; wanted == 0 {
			closeAll(r.files[:n])
			r.files = r.files[n:]
			return nil
		}
	}
	return nil
}

// lastLines is where the last n lines of a file begin, and how many there are.
func lastLines(f *os.File, n int) (at int64, found int, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	block := make([]byte, chunk)
	at = size
	for at > 0 {
		from := max(0, at-int64(len(block)))
		part := block[:at-from]
		if _, err := f.ReadAt(part, from); err != nil {
			return 0, 0, err
		}
		for {
			end := bytes.LastIndexByte(part, '\n')
			if end < 0 {
				break
			}
			if found++; found > n {
				return from + int64(end) + 1, n, nil
			}
			part = part[:end]
		}
		at = from
	}
	return 0, found, nil
}

// after are the files that come after the one that is read, if nothing will be
// added to that.
func (r *reader) after() ([]*os.File, error) {
	if len(r.files) > 1 {
		return r.files[1:], nil
	}
	current, err := r.look(currentFile)
	if current == nil || err != nil {
		return nil, err
	}
	if same(current, r.files[0]) {
		return nil, current.Close()
	}
	// What was read is the one before it, or older.
	previous, err := r.look(previousFile)
	switch {
	case err != nil:
		_ = current.Close()
		return nil, err
	case previous == nil:
	case same(previous, current), same(previous, r.files[0]):
		_ = previous.Close()
	default:
		return []*os.File{previous, current}, nil
	}
	return []*os.File{current}, nil
}
