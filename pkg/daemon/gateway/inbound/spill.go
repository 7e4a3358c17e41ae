package inbound

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// spillSpace limits the size and the number of files that hold bodies.
type spillSpace struct {
	dir      string
	limit    int64 // in bytes; 0 means that files are not used
	maxFiles int64 // limit on the number of files

	used  atomic.Int64 // bytes
	files atomic.Int64
}

// spillHostShare is the fraction of the space that the bodies of one host may use.
const spillHostShare = 3.0 / 4

// spilled is the tail of one body, in an unlinked file: closing it, or the end of this
// process, frees its space.
type spilled struct {
	space    *spillSpace
	host     *callerHost
	file     *os.File
	size     int64 // bytes written
	reserved int64 // bytes counted in the space
	fault    *refusal.Error
}

// open returns a file for the tail of an upload, of the given length or negative if
// unknown. The caller must call close afterwards.
func (s *spillSpace) open(u *Upload, bytes int64) (*spilled, *refusal.Error) {
	f := &spilled{space: s, host: u.host}
	if s.limit <= 0 {
		return nil, &refusal.Error{Code: refusal.TooLarge, Message: "the request body is larger than --buffer, and --spill 0 stores no bodies on disk",
			Hint: "call /function/NAME, which streams long bodies"}
	}
	if !f.reserve(max(bytes, 0)) {
		return nil, noSpill()
	}
	if s.files.Add(1) > s.maxFiles {
		f.fault = noSpill()
	} else if err := f.create(); err != nil {
		f.fault = cannotSpill(err)
	}
	if f.fault != nil {
		f.close()
		return nil, f.fault
	}
	return f, nil
}

func (f *spilled) create() (err error) {
	if err = os.MkdirAll(f.space.dir, 0o700); err != nil {
		return err
	}
	if f.file, err = os.CreateTemp(f.space.dir, "body-"); err != nil {
		return err
	}
	return os.Remove(f.file.Name())
}

// reserve reserves more bytes. It returns false if there is not enough space.
func (f *spilled) reserve(bytes int64) bool {
	hostUsed := f.host.spilled.Add(bytes)
	f.reserved += bytes
	used := f.space.used.Add(bytes)
	share := int64(float64(f.space.limit) * spillHostShare)
	if used <= f.space.limit && (hostUsed <= share || hostUsed == f.reserved) { // a single body may exceed its host's share
		return true
	}
	f.unreserve(bytes)
	return false
}

func (f *spilled) unreserve(bytes int64) {
	f.reserved -= bytes
	f.host.spilled.Add(-bytes)
	f.space.used.Add(-bytes)
}

// Write implements io.Writer. Its errors are of type *refusal.Error.
func (f *spilled) Write(p []byte) (int, error) {
	if more := f.size + int64(len(p)) - f.reserved; more > 0 && !f.reserve(more) {
		f.fault = noSpill()
		return 0, f.fault
	}
	n, err := f.file.Write(p)
	f.size += int64(n)
	if err != nil {
		f.fault = cannotSpill(err)
		return n, f.fault
	}
	return n, nil
}

// reader returns a reader of the written bytes from their start.
func (f *spilled) reader() io.Reader { return f.section(0, f.size) }

// section returns a reader of the written bytes in [from, to).
func (f *spilled) section(from, to int64) io.Reader {
	return io.NewSectionReader(f.file, from, to-from)
}

// close deletes the file and releases its space.
func (f *spilled) close() {
	if f == nil {
		return
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.unreserve(f.reserved)
	f.space.files.Add(-1)
}

// spillPause is the Retry-After of a call that is refused because of a disk error.
const spillPause = 10 * time.Second

func noSpill() *refusal.Error {
	return &refusal.Error{Code: refusal.Busy, Message: "other calls use all disk space for long request bodies", Retry: time.Second,
		Hint: "raise the limit with gfaas serve --spill"}
}

func cannotSpill(err error) *refusal.Error {
	return &refusal.Error{Code: refusal.Busy, Message: fmt.Sprintf("cannot store a long request body: %v", err), Retry: spillPause}
}
