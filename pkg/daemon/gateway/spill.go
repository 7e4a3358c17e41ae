package gateway

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// spillSpace bounds what is kept of bodies in files.
type spillSpace struct {
	dir       string
	most      int64 // bytes; 0 keeps none
	mostFiles int64

	used  atomic.Int64
	files atomic.Int64
}

// spillHostShare is the part of the space that one host may have.
const spillHostShare = 3.0 / 4

// spilled is the rest of one body, in a file without a name: its space is free as soon as
// it is closed, or this process has ended.
type spilled struct {
	space   *spillSpace
	host    *callerHost
	file    *os.File
	size    int64 // bytes written
	claimed int64 // bytes of the space
	fault   *Error
}

// open returns a file for the rest of an upload, of so many bytes; negative is not known.
// Close must follow.
func (s *spillSpace) open(u *upload, bytes int64) (*spilled, *Error) {
	f := &spilled{space: s, host: u.host}
	if s.most <= 0 {
		return nil, &Error{Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Message: "the request's body is larger than --buffer, and none is kept in a file (--spill 0)",
			Hint: "call /function/NAME, which needs no model"}
	}
	if !f.claim(max(bytes, 0)) {
		return nil, noSpill()
	}
	if s.files.Add(1) > s.mostFiles {
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

// claim counts more bytes as used if there is space for them.
func (f *spilled) claim(bytes int64) bool {
	mine := f.host.spilled.Add(bytes)
	f.claimed += bytes
	used := f.space.used.Add(bytes)
	share := int64(float64(f.space.most) * spillHostShare)
	if used <= f.space.most && (mine <= share || mine == f.claimed) { // one body may be larger than the share
		return true
	}
	f.unclaim(bytes)
	return false
}

func (f *spilled) unclaim(bytes int64) {
	f.claimed -= bytes
	f.host.spilled.Add(-bytes)
	f.space.used.Add(-bytes)
}

// Write implements io.Writer. The error is an *Error.
func (f *spilled) Write(p []byte) (int, error) {
	if more := f.size + int64(len(p)) - f.claimed; more > 0 && !f.claim(more) {
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

// reader returns what was written, from its start.
func (f *spilled) reader() io.Reader { return io.NewSectionReader(f.file, 0, f.size) }

// close gives the space back.
func (f *spilled) close() {
	if f == nil {
		return
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.unclaim(f.claimed)
	f.space.files.Add(-1)
}

func noSpill() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: codeBusy, Message: "the bodies of other calls take all space that is for long ones", Retry: time.Second,
		Hint: "gfaas serve --spill allows more"}
}

func cannotSpill(err error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: codeBusy, Message: fmt.Sprintf("cannot keep a long body in a file: %v", err), Retry: journalPause}
}
