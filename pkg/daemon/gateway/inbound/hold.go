package inbound

import (
	"errors"
	"io"
)

// Hold is memory for an answer that the gateway must read completely. It counts like the memory of bodies.
type Hold struct {
	in       *Intake
	reserved int64
}

// Hold reserves the memory of the head of a long body. It returns nil if that is not available now.
func (in *Intake) Hold() *Hold {
	h := &Hold{in: in}
	if !h.grow(in.cfg.Buffer) {
		return nil
	}
	return h
}

// grow reserves more memory until it is size bytes. It returns false if that is not available now.
func (h *Hold) grow(size int64) bool {
	m := &h.in.bodies
	if m.limit <= 0 || size <= h.reserved {
		return true
	}
	if !m.reserve(size - h.reserved) {
		return false
	}
	h.reserved = size
	return true
}

// Release frees the memory.
func (h *Hold) Release() {
	if h.reserved > 0 {
		h.in.bodies.release(h.reserved)
		h.reserved = 0
	}
}

// ReadAll reads up to EOF, and calls progress after each read. length is the expected length in bytes, or negative if
// it is unknown. ReadAll returns a *refusal.Error if the memory does not suffice, or the error of r.
func (h *Hold) ReadAll(r io.Reader, length int64, progress func()) ([]byte, error) {
	data := make([]byte, 0, max(min(length, h.in.cfg.Buffer)+1, 512)) // one more byte, so that the last read finds EOF
	for {
		if len(data) == cap(data) {
			larger := 2 * int64(cap(data))
			if !h.grow(larger) {
				return nil, NoMemory()
			}
			data = append(make([]byte, 0, larger), data...)
		}
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		progress()
	}
}
