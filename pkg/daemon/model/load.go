package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// loadsAtOnce limits concurrent loads. One tenant may run at most loadsAtOnce-1. With several
// loads, one can read files while another waits for the GPU.
const loadsAtOnce = 3

// loader reads models into GPU memory.
type loader struct {
	*library
	stages        *stages
	loadLimiter   *limiter
	headerLimiter *limiter // for reading headers and manifests, which may be long
	seconds       prometheus.Histogram
}

// openSource opens a copy's files. It fails if that takes longer than Config.Stall.
func (l *loader) openSource(c *modelCopy) (*source, error) {
	o := c.origin
	return readWithin(c.ctx, l.cfg.Stall, func() (*source, error) { return open(o, isIndex(o.path)) }, (*source).close)
}

// readWithin calls read, which reads files, and returns its result. If read takes longer than
// stall, or ctx ends first, readWithin returns an error; read then continues in the background, and
// readWithin passes its result to late.
func readWithin[T any](ctx context.Context, stall time.Duration, read func() (T, error), late func(T)) (zero T, err error) {
	type reading struct {
		got T
		err error
	}
	done, abandoned := make(chan reading), make(chan struct{})
	defer close(abandoned)
	go func() {
		got, err := read()
		select {
		case done <- reading{got, err}:
		case <-abandoned:
			late(got)
		}
	}()
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.got, r.err
	case <-ctx.Done():
		return zero, ctx.Err()
	case <-timer.C:
		return zero, stalled(stall)
	}
}

func stalled(stall time.Duration) error { return fmt.Errorf("no byte could be read for %v", stall) }

// sameContent reports whether a new copy would equal the copy on the GPU. For a single file of the
// same length it computes the checksum, so that an unchanged file needs no second copy on the GPU.
func (l *loader) sameContent(c *modelCopy, current *wire.Record) (bool, error) {
	if c.source.index != nil {
		return c.source.sum == current.SHA256 && c.source.sameFiles(current), nil
	}
	if c.source.bytes() != current.Bytes || len(current.Files) > 1 {
		return false, nil
	}
	sum, err := l.sum(c)
	if err != nil {
		return false, err
	}
	return sum == current.SHA256 && (c.origin.sha == "" || c.origin.sha == sum), nil
}

// sum returns the SHA-256 of the copy's only file, in hex.
func (l *loader) sum(c *modelCopy) (string, error) {
	f, sum := c.source.files[0], sha256.New()
	err := l.pieces(c.ctx, []segment{{file: f, n: f.size}}, gpu.Bytes(f.size), func(p stagedPiece) error {
		for _, part := range p.tensors {
			sum.Write(part)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), f.unchanged()
}

// await waits until a reader has ended, so that its stage is not freed while in use. It gives up
// after Config.Stall, and returns at once if stall has already expired.
func (l *loader) await(ended <-chan struct{}, stall *time.Timer) {
	if !stall.Stop() {
		return
	}
	stall.Reset(l.cfg.Stall)
	select {
	case <-ended:
	case <-stall.C:
	}
}

// allocate allocates a copy's memory. For a store it also clears the memory and makes the manifest.
func (l *loader) allocate(c *modelCopy) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	memory, err := l.cfg.GPU.Alloc(c.allocSize)
	if err != nil {
		return err
	}
	var parsed manifest
	if c.store {
		if parsed, err = l.manifest(c.ctx, c.key.Tenant, c.source); err == nil {
			err = l.clearMemory(c.ctx, memory)
		}
	}
	var export *os.File
	if err == nil {
		export, err = memory.Export()
	}
	if err != nil {
		parsed.close()
		return errors.Join(err, memory.Free())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.freed { // the client of the store has disconnected
		parsed.close()
		_ = export.Close()
		return errors.Join(context.Canceled, memory.Free())
	}
	c.memory, c.export = memory, export
	if c.store {
		c.source.close()
		c.source, c.manifest, c.record.Tensors, c.record.Bytes = nil, parsed.file, parsed.tensors, parsed.bytes
	}
	return nil
}

// clearMemory clears memory before a client may write to it, because the memory may contain the model
// of another tenant.
func (l *loader) clearMemory(ctx context.Context, m device.Memory) error {
	stage, err := l.stages.acquire(ctx)
	if err != nil {
		return err
	}
	defer l.stages.release(stage)
	clear(stage.Buffer())
	for at := gpu.Bytes(0); err == nil && at < m.Size(); at += l.stages.size {
		if err = ctx.Err(); err == nil {
			err = stage.Up(m, at, int(min(l.stages.size, m.Size()-at)))
		}
	}
	return errors.Join(err, stage.Wait())
}

// load reads a copy's files into its memory and sets its record and manifest. It verifies
// checksums and that the files did not change meanwhile.
func (l *loader) load(c *modelCopy) error {
	release, err := l.loadLimiter.acquire(c.ctx, c.key.Tenant)
	if err != nil {
		return err
	}
	defer release()
	started := time.Now()
	read, err := readWithin(c.ctx, l.cfg.Stall, c.source.reread, func(*layout) {})
	if err != nil {
		return err
	}
	record := wire.Record{
		Tenant: c.key.Tenant, Name: c.key.Name, Public: c.public, Tensors: read.tensors, Bytes: c.source.bytes(), Files: c.source.recordFiles(),
	}
	content := sha256.New() // of the only file, or of the index and all tensors
	content.Write(read.text)
	content.Write(read.header)
	err = l.pieces(c.ctx, read.segments, c.memory.Size(), func(p stagedPiece) error { return l.upload(c, p, content) })
	if err != nil {
		return err
	}
	for _, f := range c.source.allFiles() {
		if err := f.unchanged(); err != nil {
			return err
		}
	}
	record.SHA256 = hex.EncodeToString(content.Sum(nil)) // as sha256sum prints it
	record.Content = record.SHA256
	if c.source.index != nil {
		record.SHA256, record.Content = c.source.sum, "index:"+record.Content
	}
	if recorded := c.origin.record; recorded != nil {
		if record.Content != recorded.Content {
			return wire.Errorf(wire.CodeChanged, "the content of %s has changed since it was put, although its size and mtime are the same: put it again", c.origin.path)
		}
		record.Public = recorded.Public
	}
	if expected := c.origin.sha; expected != "" && expected != record.SHA256 {
		return wire.Errorf(wire.CodeChecksum, "the file has the SHA-256 %s, expected %s", record.SHA256, expected)
	}
	manifest, err := makeManifest(read.manifest)
	if err != nil {
		return err
	}
	l.log.Info("model loaded", "tenant", c.key.Tenant, "model", c.key.Name, "bytes", record.Bytes, "seconds", time.Since(started).Seconds())
	l.seconds.Observe(time.Since(started).Seconds())
	l.mu.Lock()
	defer l.mu.Unlock()
	c.source.close()
	c.source = nil
	c.record, c.manifest, c.header = record, manifest, read.header
	return nil
}

// stagedPiece is a stage with a piece of a model.
type stagedPiece struct {
	stage   device.Stage
	at      gpu.Bytes
	n       int
	tensors [][]byte // the bytes of tensors in the piece, in the order of the files, for the checksum
	err     error
}

// pieces reads segments in the background, and calls use for each piece up to the offset total of the
// GPU layout.
func (l *loader) pieces(ctx context.Context, segments []segment, total gpu.Bytes, use func(stagedPiece) error) error {
	ctx, cancel := context.WithCancel(ctx)
	pieces := make(chan stagedPiece)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.read(ctx, segments, total, pieces)
	}()
	stall := time.NewTimer(l.cfg.Stall)
	defer stall.Stop()
	defer l.await(ended, stall)
	defer cancel()
	for at := gpu.Bytes(0); at < total; {
		stall.Reset(l.cfg.Stall)
		select {
		case p := <-pieces:
			if p.err == nil {
				p.err = use(p)
			}
			if p.stage != nil {
				l.stages.release(p.stage)
			}
			if p.err != nil {
				return p.err
			}
			at += gpu.Bytes(p.n)
		case <-ctx.Done():
			return ctx.Err()
		case <-stall.C:
			return stalled(l.cfg.Stall)
		}
	}
	return nil
}

// upload copies a piece to the GPU. It updates the checksum during the transfer.
func (l *loader) upload(c *modelCopy, p stagedPiece, sum hash.Hash) error {
	if err := p.stage.Up(c.memory, p.at, p.n); err != nil {
		return err
	}
	for _, part := range p.tensors {
		sum.Write(part)
	}
	if err := p.stage.Wait(); err != nil {
		return err
	}
	c.loaded.Store(int64(p.at) + int64(p.n))
	return nil
}

// read reads a model piece by piece in its GPU layout, with zeros between and after the tensors.
// A hanging read keeps its stage.
func (l *loader) read(ctx context.Context, segments []segment, total gpu.Bytes, pieces chan<- stagedPiece) {
	for at := gpu.Bytes(0); at < total; {
		p := stagedPiece{at: at}
		p.stage, p.err = l.stages.acquire(ctx)
		if p.err == nil {
			p.n = int(min(l.stages.size, total-at))
			p.tensors, segments, p.err = readPiece(p.stage.Buffer()[:p.n], int64(at), segments)
		}
		select {
		case pieces <- p:
		case <-ctx.Done():
			if p.stage != nil {
				l.stages.release(p.stage)
			}
			return
		}
		if p.err != nil {
			return
		}
		at += gpu.Bytes(p.n)
	}
}

// readPiece fills buf with the bytes at the given offset of the GPU layout. segments starts with
// the first segment that ends after the offset. readPiece returns the ranges of buf that belong to
// tensors, and the remaining segments.
func readPiece(buf []byte, at int64, segments []segment) (tensors [][]byte, remaining []segment, err error) {
	end := at + int64(len(buf))
	done := at
	for len(segments) > 0 && segments[0].to < end {
		s := segments[0]
		from := max(s.to, at)
		to := min(s.to+s.n, end)
		if to > from {
			clear(buf[done-at : from-at])
			part := buf[from-at : to-at]
			if err := s.file.fill(part, s.from+from-s.to); err != nil {
				return nil, nil, err
			}
			tensors = append(tensors, part)
			done = to
		}
		if s.to+s.n > end {
			break
		}
		segments = segments[1:]
	}
	clear(buf[done-at:])
	return tensors, segments, nil
}

// manifest is a sealed file that describes a model's tensors to clients.
type manifest struct {
	file    *os.File
	size    gpu.Bytes // size of file
	tensors int
	bytes   int64 // total size of the tensors
}

func (m manifest) close() {
	if m.file != nil {
		_ = m.file.Close()
	}
}

// manifest parses the manifest that a client passed for a store and copies it into a sealed file.
func (l *loader) manifest(ctx context.Context, tenant string, s *source) (manifest, error) {
	invalidManifest := func(err error) error { return wire.Errorf(wire.CodeInvalidFile, "manifest: %v", err) }
	f := s.files[0]
	if f.size > maxText {
		return manifest{}, invalidManifest(fmt.Errorf("it has %d bytes, expected at most %d", f.size, maxText))
	}
	release, err := l.headerLimiter.acquire(ctx, tenant)
	if err != nil {
		return manifest{}, err
	}
	defer release()
	return readWithin(ctx, l.cfg.Stall, func() (m manifest, err error) {
		places, metadata, err := wire.ParseManifest(io.NewSectionReader(f, 0, f.size), int64(s.image))
		if err != nil {
			return m, invalidManifest(err)
		}
		m.tensors = len(places)
		for _, p := range places {
			m.bytes += p.Bytes
		}
		text, err := wire.AppendManifest(nil, places, metadata)
		if m.size = gpu.Bytes(len(text)); err == nil && s.host > 0 && m.size != s.host {
			err = invalidManifest(errors.New("it changed while it was read"))
		}
		if err == nil {
			m.file, err = makeManifest(text)
		}
		return m, err
	}, manifest.close)
}

// makeManifest returns a sealed file with the given text.
func makeManifest(text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("gfaas-manifest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	f := os.NewFile(uintptr(fd), "gfaas-manifest")
	if _, err = f.WriteAt(text, 0); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("manifest: %w", err), f.Close())
	}
	return f, nil
}
