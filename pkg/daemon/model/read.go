package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/safetensors"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
	"golang.org/x/sys/unix"
)

// chunk is the largest piece that read writes at a time, in bytes. The client must receive each
// piece within SendTime.
const chunk = 1 << 20

// reader identifies the readers that take turns: by the tenant of the socket and of the request.
type reader struct{ socket, tenant string }

// read writes a model from GPU memory, as a safetensors file, into the pipe that came with the
// request. The answer contains the expected checksum if the model is a single file.
func (c *call) read() (wire.Answer, error) {
	if c.file == nil {
		return wire.Answer{}, usage("read without the file descriptor of a pipe")
	}
	writer, err := pipe(c.file)
	if err != nil {
		return wire.Answer{}, err
	}
	defer writer.Close()
	defer context.AfterFunc(c.conn.ctx, func() { _ = writer.SetWriteDeadline(time.Unix(1, 0)) })()
	r := &request{}
	id, res := c.acquire(r)
	if res.err != nil {
		return wire.Answer{}, res.err
	}
	defer c.endRequest(id, r)
	srv := c.conn.server
	a := wire.Answer{Name: res.copy.key.Name, Generation: res.generation}
	if len(res.copy.header) > 0 {
		a.SHA256 = res.copy.record.SHA256
	}
	// One at a time, to limit the memory for slow readers.
	slot := srv.readerSlot(reader{c.conn.tenant, c.forTenant})
	if err := slot.Acquire(c.conn.ctx, 1); err != nil {
		return a, err
	}
	defer slot.Release(1)
	// The reading end sees the end of the file only when all writing ends are closed.
	procfs.Discard(c.file)
	c.file = nil
	return a, c.write(writer, res.copy)
}

// pipe returns a non-blocking descriptor for a client's pipe.
func pipe(f *os.File) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&os.ModeNamedPipe == 0 {
		return nil, usage("read into %s, expected a pipe", kind(info.Mode()))
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

// span is a tensor's range in GPU memory.
type span struct{ at, n int64 }

// write writes the file of a copy that the request holds.
func (c *call) write(pipe *os.File, of *modelCopy) error {
	header, spans, err := c.outline(of)
	if err == nil {
		err = c.send(pipe, header)
	}
	buf := make([]byte, min(chunk, c.conn.server.stages.size))
	for _, s := range spans {
		for err == nil && s.n > 0 {
			part := buf[:min(s.n, int64(len(buf)))]
			if err = c.download(part, of, s.at); err == nil {
				err = c.send(pipe, part)
			}
			s.at += int64(len(part))
			s.n -= int64(len(part))
		}
	}
	return err
}

// outline returns the header of a copy's file, and the ranges of the tensors after it.
func (c *call) outline(of *modelCopy) (header []byte, spans []span, err error) {
	outlines := c.conn.server.outlines
	if err := outlines.Acquire(c.conn.ctx, 1); err != nil {
		return nil, nil, err
	}
	defer outlines.Release(1)
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

// download copies bytes at an offset of a copy from the GPU into buf. It returns the stage before the
// caller waits for a client.
func (c *call) download(buf []byte, from *modelCopy, at int64) error {
	stage, err := c.conn.server.stages.acquire(c.conn.ctx)
	if err != nil {
		return err
	}
	defer c.conn.server.stages.release(stage)
	if err := errors.Join(stage.Down(from.memory, gpu.Bytes(at), len(buf)), stage.Wait()); err != nil {
		return err
	}
	copy(buf, stage.Buffer())
	return nil
}

// headerOf returns the safetensors header for these tensors.
func headerOf(places []wire.Place, metadata map[string]string) ([]byte, error) {
	tensors := make([]safetensors.Tensor, len(places))
	for i, p := range places {
		tensors[i] = safetensors.Tensor{Name: p.Name, DType: p.DType, Shape: p.Shape, Bytes: p.Bytes}
	}
	return safetensors.AppendHeader(nil, tensors, metadata)
}

// send writes data to a pipe. It fails if the client does not read a chunk within SendTime.
func (c *call) send(pipe *os.File, data []byte) error {
	for len(data) > 0 {
		if err := c.conn.ctx.Err(); err != nil {
			return err
		}
		if err := pipe.SetWriteDeadline(time.Now().Add(c.conn.server.cfg.SendTime)); err != nil {
			return err
		}
		n, err := pipe.Write(data[:min(len(data), chunk)])
		if err != nil {
			return fmt.Errorf("write to the pipe: %w", err)
		}
		data = data[n:]
	}
	return nil
}
