package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/safetensors"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// chunk is how much of a model is written back at a time, in bytes: who reads has
// SendTime for each.
const chunk = 1 << 20

// reader is by what socket a model is read, and as which tenant's.
type reader struct{ socket, tenant string }

// readings is held by the one of these readers to whom a model is being written.
// Others wait for each other alone: nobody has to be done in time.
func (d *Daemon) readings(r reader) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reading[r] == nil {
		d.reading[r] = make(chan struct{}, 1)
	}
	return d.reading[r]
}

// read writes a model's file, from the GPU, into the pipe that came with the
// request. The answer has the sum that must come out, if the file is one that was
// put.
func (c *call) read() (wire.Answer, []*os.File, error) {
	if c.file == nil {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeUsage, "read without the descriptor of a pipe")
	}
	out, err := pipe(c.file)
	if err != nil {
		return wire.Answer{}, nil, err
	}
	defer out.Close()
	defer context.AfterFunc(c.conn.ctx, func() { _ = out.SetWriteDeadline(time.Unix(1, 0)) })()
	r := &request{}
	id, got := c.acquire(r)
	if got.err != nil {
		return wire.Answer{}, nil, got.err
	}
	defer c.over(id, r)
	d := c.conn.d
	a := wire.Answer{Name: got.copy.key.Name, Generation: got.generation}
	if len(got.copy.header) > 0 {
		a.SHA256 = got.copy.record.SHA256
	}
	// One at a time, so that readers who take theirs have little memory.
	reading := d.readings(reader{c.conn.tenant, c.as})
	select {
	case reading <- struct{}{}:
		defer func() { <-reading }()
	case <-c.conn.ctx.Done():
		return a, nil, c.conn.ctx.Err()
	}
	// Whoever reads the pipe waits for its end.
	discard([]*os.File{c.file})
	c.file = nil
	return a, nil, c.write(out, got.copy)
}

// pipe is a client's pipe, for writing without being kept by it.
func pipe(f *os.File) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&os.ModeNamedPipe == 0 {
		return nil, wire.Errorf(wire.CodeUsage, "read into %s, expected a pipe", kind(info.Mode()))
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "a client's pipe"), nil
}

// span is where a tensor is in an allocation.
type span struct{ at, n int64 }

// write writes the file of a copy that a request holds.
func (c *call) write(out *os.File, of *copied) error {
	header, spans, err := c.outline(of)
	if err == nil {
		err = c.send(out, header)
	}
	buf := make([]byte, min(chunk, c.conn.d.stages.size))
	for _, s := range spans {
		for err == nil && s.n > 0 {
			part := buf[:min(s.n, int64(len(buf)))]
			if err = c.down(part, of, s.at); err == nil {
				err = c.send(out, part)
			}
			s.at += int64(len(part))
			s.n -= int64(len(part))
		}
	}
	return err
}

// outline is the header of a copy's file, and what follows it.
func (c *call) outline(of *copied) (header []byte, spans []span, err error) {
	select {
	case c.conn.d.outlines <- struct{}{}:
		defer func() { <-c.conn.d.outlines }()
	case <-c.conn.ctx.Done():
		return nil, nil, c.conn.ctx.Err()
	}
	info, err := of.manifest.Stat()
	if err != nil {
		return nil, nil, err
	}
	places, metadata, err := wire.ParseManifest(io.NewSectionReader(of.manifest, 0, info.Size()), int64(of.memory.Size()))
	if err != nil {
		return nil, nil, err
	}
	if header = of.header; len(header) == 0 {
		header, err = headerOf(places, metadata)
	}
	spans = make([]span, len(places))
	for i, p := range places {
		spans[i] = span{p.Offset, p.Bytes}
	}
	return header, spans, err
}

// down copies from the GPU what lies there at a place. The stage is given back
// before anybody is waited for.
func (c *call) down(buf []byte, from *copied, at int64) error {
	stage, err := c.conn.d.stages.take(c.conn.ctx)
	if err != nil {
		return err
	}
	defer c.conn.d.stages.put(stage)
	if err := errors.Join(stage.Down(from.memory, gpu.Bytes(at), len(buf)), stage.Wait()); err != nil {
		return err
	}
	copy(buf, stage.Buffer())
	return nil
}

// headerOf is the header of a file with these tensors.
func headerOf(places []wire.Place, metadata map[string]string) ([]byte, error) {
	tensors := make([]safetensors.Tensor, len(places))
	for i, p := range places {
		tensors[i] = safetensors.Tensor{Name: p.Name, DType: p.DType, Shape: p.Shape, Bytes: p.Bytes}
	}
	return safetensors.AppendHeader(nil, tensors, metadata)
}

// send writes to a pipe that somebody reads.
func (c *call) send(out *os.File, data []byte) error {
	for len(data) > 0 {
		if err := c.conn.ctx.Err(); err != nil {
			return err
		}
		if err := out.SetWriteDeadline(time.Now().Add(c.conn.d.cfg.SendTime)); err != nil {
			return err
		}
		n, err := out.Write(data[:min(len(data), chunk)])
		if err != nil {
			return fmt.Errorf("the pipe: %w", err)
		}
		data = data[n:]
	}
	return nil
}
