package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// pollInterval is the poll interval for following a log.
const pollInterval = 100 * time.Millisecond

// Read reads the log in a folder. It yields no lines if the folder does not exist.
// Following ends when the log has no keeper any more.
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
		if err != nil && !errors.Is(err, errStopped) {
			yield(ports.LogLine{}, err)
		}
	}
}

// errStopped reports that the consumer has stopped the iteration.
var errStopped = errors.New("the consumer has stopped")

type reader struct {
	root    *os.Root
	options ports.LogOptions
	yield   func(ports.LogLine, error) bool

	files   []*os.File // files to read, in order
	partial []byte     // the first part of a line that is not completely written
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (r *reader) run(ctx context.Context) error {
	var err error
	if r.files, err = r.openFiles(); err != nil || len(r.files) == 0 {
		return err
	}
	if err := r.seek(); err != nil {
		return err
	}
	in := bufio.NewReaderSize(r.files[0], maxRecord)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		// Check first, so that the last output before the keeper's end is read.
		ended := !r.options.Follow || !hasKeeper(r.root)
		after, err := r.filesAfter()
		if err != nil {
			return err
		}
		if err := r.readAvailable(ctx, in); err != nil {
			closeAll(after)
			return err
		}
		switch {
		case len(after) > 0:
			_ = r.files[0].Close()
			r.files, r.partial = after, r.partial[:0]
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

// readAvailable yields the lines up to the current end of the file.
func (r *reader) readAvailable(ctx context.Context, in *bufio.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := in.ReadSlice('\n')
		r.partial = append(r.partial, more...)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull): // ErrBufferFull: the line is damaged
			return err
		}
		err = r.yieldRecord(r.partial)
		r.partial = r.partial[:0]
		if err != nil {
			return err
		}
	}
}

// yieldRecord yields a line unless it is older than Since.
func (r *reader) yieldRecord(record []byte) error {
	line := parseLine(record)
	if line.Time.Before(r.options.Since) {
		return nil
	}
	if !r.yield(line, nil) {
		return errStopped
	}
	return nil
}

// openFiles opens the existing files, the oldest first.
func (r *reader) openFiles() ([]*os.File, error) {
	current, err := r.openFile(currentFile)
	if current == nil || err != nil {
		return nil, err
	}
	previous, err := r.openFile(previousFile)
	switch {
	case err != nil:
		_ = current.Close()
		return nil, err
	case previous == nil:
		return []*os.File{current}, nil
	case sameFile(previous, current): // renamed between the two calls
		return []*os.File{current}, previous.Close()
	}
	return []*os.File{previous, current}, nil
}

// openFile opens a file, or returns nil if it does not exist.
func (r *reader) openFile(name string) (*os.File, error) {
	f, err := r.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

func sameFile(a, b *os.File) bool {
	first, err := a.Stat()
	if err != nil {
		return false
	}
	second, err := b.Stat()
	return err == nil && os.SameFile(first, second)
}

// seek skips the lines before the last Tail lines.
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

// lastLines returns the offset of the last n lines of a file, and how many of them exist.
func lastLines(f *os.File, n int) (at int64, found int, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	block := make([]byte, chunkSize)
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

// filesAfter returns the files that follow the file being read, if that is complete.
func (r *reader) filesAfter() ([]*os.File, error) {
	if len(r.files) > 1 {
		return r.files[1:], nil
	}
	files, err := r.openFiles()
	if i := slices.IndexFunc(files, func(f *os.File) bool { return sameFile(f, r.files[0]) }); i >= 0 {
		closeAll(files[:i+1])
		files = files[i+1:]
	}
	return files, err
}
