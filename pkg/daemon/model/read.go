package model

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/safetensors"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

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
	// One at a time, so that readers who take theirs have one stage and no more.
	select {
	case d.reading <- struct{}{}:
		defer func() { <-d.reading }()
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

// write writes the file of a copy that a request holds.
func (c *call) write(out *os.File, of *copied) error {
	stage, err := c.conn.d.stages.take(c.conn.ctx)
	if err != nil {
		return err
	}
	defer c.conn.d.stages.put(stage)
	down := func(p wire.Place) error {
		for p.Bytes > 0 {
			n := int(min(p.Bytes, int64(len(stage.Buffer()))))
			if err := stage.Down(of.memory, gpu.Bytes(p.Offset), n); err != nil {
				return err
			}
			if err := stage.Wait(); err != nil {
				return err
			}
			if err := c.send(out, stage.Buffer()[:n]); err != nil {
				return err
			}
			p.Offset += int64(n)
			p.Bytes -= int64(n)
		}
		return nil
	}
	info, err := of.manifest.Stat()
	if err != nil {
		return err
	}
	places, metadata, err := wire.ParseManifest(io.NewSectionReader(of.manifest, 0, info.Size()), int64(of.memory.Size()))
	if err != nil {
		return err
	}
	header := of.header
	if len(header) == 0 {
		header, err = headerOf(places, metadata)
	}
	if err == nil {
		err = c.send(out, header)
	}
	for _, p := range places {
		if err == nil {
			err = down(p)
		}
	}
	return err
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
		n, err := out.Write(data[:min(len(data), 1<<20)])
		if err != nil {
			return fmt.Errorf("the pipe: %w", err)
		}
		data = data[n:]
	}
	return nil
}
