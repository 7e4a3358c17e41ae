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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// copied is a copy of a model: on the GPU, or on its way there.
type copied struct {
	id     policy.CopyID
	key    policy.Key
	ctx    context.Context
	cancel context.CancelFunc
	store  bool // written by a client
	public bool

	// On its way there. Only the goroutine that look or fill started has these.
	origin origin
	source *source

	// Guarded by the daemon's lock.
	record     wire.Record // what will be kept of it
	generation int64       // 0: not published
	freed      bool
	memory     device.Memory
	export     *os.File // by which clients map it
	manifest   *os.File
	header     []byte  // of the file; empty: it is of several, or of none
	charge     *charge // of a store that is not committed; nil: it counts against no slice

	need   gpu.Bytes    // memory, rounded up
	bytes  atomic.Int64 // of the files; 0 until they are looked at
	loaded atomic.Int64
}

func (d *Daemon) newCopy(id policy.CopyID, key policy.Key) *copied {
	c := &copied{id: id, key: key}
	c.ctx, c.cancel = context.WithCancel(d.ctx)
	d.copies[id] = c
	return c
}

// size is how much memory it has.
func (c *copied) size() gpu.Bytes {
	if c.memory == nil {
		return 0
	}
	return c.memory.Size()
}

// free gives up all that belongs to it. Locked.
func (c *copied) free() error {
	defer c.charge.stop() // then its memory is free
	c.cancel()
	c.freed = true
	if c.source != nil {
		c.source.close()
	}
	for _, f := range []*os.File{c.export, c.manifest} {
		if f != nil {
			_ = f.Close()
		}
	}
	if c.memory == nil {
		return nil
	}
	m := c.memory
	c.memory = nil
	return m.Free()
}

// fails ends a copy that will not be. The goroutine that was at it calls this last.
func (d *Daemon) fails(c *copied, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.copies[c.id] == c {
		delete(d.copies, c.id)
		if freeing := c.free(); freeing != nil {
			d.log.Error("model's memory", "tenant", c.key.Tenant, "model", c.key.Name, "err", freeing)
		}
	}
	if !errors.Is(err, context.Canceled) {
		d.counts.failures++
		d.log.Warn("model not loaded", "tenant", c.key.Tenant, "model", c.key.Name, "err", err)
	}
	d.stepLocked(policy.Failed{Copy: c.id, Err: err})
}

// begin finds out how large a copy is. Locked.
func (d *Daemon) begin(a policy.Begin) {
	c := d.copies[a.Copy]
	r := d.requests[a.Request]
	if r.store {
		c = d.newCopy(a.Copy, a.Key)
		c.store, c.public, c.need, c.record, c.source, c.charge = true, r.public, r.size, r.record, r.source, r.charge
		c.record.Content = fmt.Sprint("store:", a.Copy)
		return
	}
	if c == nil {
		c = d.newCopy(a.Copy, a.Key)
		c.origin, c.public = d.originOf(a.Key, r), r.public
	}
	known := d.models[a.Key]
	var there *wire.Record
	if r.put && known != nil && d.onGPU(a.Key) {
		record := known.record
		there = &record
	}
	d.work.Go(func() { d.look(c, there) })
}

// onGPU says whether a model has a copy there. Locked.
func (d *Daemon) onGPU(key policy.Key) bool {
	m := d.models[key]
	for _, c := range d.copies {
		if m != nil && c.key == key && c.generation > 0 && c.generation == m.record.Generation {
			return true
		}
	}
	return false
}

// originOf is where the weights for a request are. Locked.
func (d *Daemon) originOf(key policy.Key, r *request) origin {
	m := d.models[key]
	switch {
	case r.put:
		return origin{file: r.takeFile(), path: r.path, sha: r.sha}
	case m != nil && len(m.record.Files) > 0:
		record := m.record
		return origin{path: record.Files[0].Path, was: &record}
	case r.file != nil:
		return origin{file: r.takeFile(), path: r.path}
	}
	path, _ := wire.FileOf(d.cfg.Models, key.Name)
	return origin{path: path}
}

// look opens a copy's files, if they are not open yet, and tells how much memory it
// takes; or, where there is one on the GPU, that it would be the same.
func (d *Daemon) look(c *copied, there *wire.Record) {
	done, err := d.looks.take(c.ctx, c.key.Tenant)
	if err == nil {
		if c.source == nil {
			c.source, err = d.openSource(c)
		}
		done()
	}
	if err == nil {
		c.bytes.Store(c.source.bytes())
		c.need = (max(c.source.image, 1) + d.cfg.GPU.Granularity() - 1) / d.cfg.GPU.Granularity() * d.cfg.GPU.Granularity()
		if there != nil {
			var same bool
			if same, err = d.same(c, there); same {
				d.refresh(c, there)
				d.step(policy.Same{Copy: c.id, Content: there.Content})
				return
			}
		}
	}
	if err != nil {
		d.fails(c, err)
		return
	}
	d.step(policy.Sized{Copy: c.id, Bytes: c.need, Host: c.source.host})
}

// openSource opens a copy's files.
func (d *Daemon) openSource(c *copied) (*source, error) {
	o := c.origin
	return within(c.ctx, d, func() (*source, error) { return open(o, isIndex(o.path)) }, (*source).close)
}

// within reads files. What does not answer in time goes on by itself, and is given
// to late when it does.
func within[T any](ctx context.Context, d *Daemon, read func() (T, error), late func(T)) (none T, err error) {
	type reading struct {
		got T
		err error
	}
	done, gone := make(chan reading), make(chan struct{})
	defer close(gone)
	go func() {
		got, err := read()
		select {
		case done <- reading{got, err}:
		case <-gone:
			late(got)
		}
	}()
	timer := time.NewTimer(d.cfg.Stall)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.got, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-timer.C:
		return none, d.stalled()
	}
}

func (d *Daemon) stalled() error { return fmt.Errorf("nothing was read for %v", d.cfg.Stall) }

// refresh has a model that was put again read from the file of that put when it
// has to be loaded: the one of the put before may be gone, or newer now.
func (d *Daemon) refresh(c *copied, there *wire.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, files := d.models[c.key], c.source.kept()
	if m != nil && m.record.Content == there.Content && len(files) > 0 {
		m.record.Files = files
		d.keep(c.key)
	}
}

// same says whether a copy would be what is on the GPU already. A file of the same
// length is summed for that, so that it needs no second place on the GPU.
func (d *Daemon) same(c *copied, there *wire.Record) (bool, error) {
	if c.source.index != nil {
		return c.source.sum == there.SHA256 && c.source.same(there), nil
	}
	if c.source.bytes() != there.Bytes || len(there.Files) > 1 {
		return false, nil
	}
	sum, err := d.sum(c)
	if err != nil {
		return false, err
	}
	return sum == there.SHA256 && (c.origin.sha == "" || c.origin.sha == sum), nil
}

// sum reads a file and sums it.
func (d *Daemon) sum(c *copied) (string, error) {
	f := c.source.files[0]
	stage, err := d.stages.take(c.ctx)
	if err != nil {
		return "", err
	}
	type piece struct {
		n   int64
		err error
	}
	pieces, sum := make(chan piece), sha256.New()
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	go func() { // a read that does not come back keeps its stage
		defer close(ended)
		defer d.stages.put(stage)
		for at := int64(0); at < f.size && ctx.Err() == nil; {
			part := stage.Buffer()[:min(int64(len(stage.Buffer())), f.size-at)]
			p := piece{int64(len(part)), f.fill(part, at)}
			if p.err == nil {
				sum.Write(part)
			}
			select {
			case pieces <- p:
			case <-ctx.Done():
			}
			if p.err != nil {
				return
			}
			at += p.n
		}
	}()
	stall := time.NewTimer(d.cfg.Stall)
	defer stall.Stop()
	defer d.await(ended, stall)
	defer cancel()
	for at := int64(0); at < f.size; {
		stall.Reset(d.cfg.Stall)
		select {
		case p := <-pieces:
			if p.err != nil {
				return "", p.err
			}
			at += p.n
		case <-ctx.Done():
			return "", ctx.Err()
		case <-stall.C:
			return "", d.stalled()
		}
	}
	d.await(ended, stall)
	return hex.EncodeToString(sum.Sum(nil)), f.unchanged()
}

// await waits for a reader that was told to end, or has, so that its stage is not
// freed under it. One that the timer has been waiting for hangs, and is let be.
func (d *Daemon) await(ended <-chan struct{}, stall *time.Timer) {
	if !stall.Stop() {
		return
	}
	stall.Reset(d.cfg.Stall)
	select {
	case <-ended:
	case <-stall.C:
	}
}

// fill reads exactly that much.
func (o *opened) fill(buf []byte, at int64) error {
	n, err := o.ReadAt(buf, at)
	switch {
	case n == len(buf):
		return nil
	case errors.Is(err, io.EOF):
		return o.fault("the file ends at byte %d while it is read", at+int64(n))
	}
	return err
}

// fill takes memory for a copy and loads it. Locked.
func (d *Daemon) fill(c *copied) {
	d.work.Go(func() {
		err := d.take(c)
		switch {
		case device.Full(err):
			d.step(policy.Full{Copy: c.id})
			return
		case err == nil && c.store:
			d.step(policy.Writable{Copy: c.id})
			return
		case err == nil:
			err = d.load(c)
		}
		if err != nil {
			d.fails(c, err)
			return
		}
		d.step(policy.Loaded{Copy: c.id, Content: c.record.Content})
	})
}

// take takes the memory, and the manifest of what will be written into it.
func (d *Daemon) take(c *copied) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	memory, err := d.cfg.GPU.Alloc(c.need)
	if err != nil {
		return err
	}
	var told manifest
	if c.store {
		if told, err = d.manifest(c.ctx, c.key.Tenant, c.source); err == nil {
			err = d.blank(c.ctx, memory)
		}
	}
	var export *os.File
	if err == nil {
		export, err = memory.Export()
	}
	if err != nil {
		told.close()
		return errors.Join(err, memory.Free())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.freed { // who wanted to store it is gone
		told.close()
		_ = export.Close()
		return errors.Join(context.Canceled, memory.Free())
	}
	c.memory, c.export = memory, export
	if c.store {
		c.source.close()
		c.source, c.manifest, c.record.Tensors, c.record.Bytes = nil, told.file, told.tensors, told.bytes
	}
	return nil
}

// blank writes zeros over memory that a client will be given to write to: it may
// have been another tenant's model.
func (d *Daemon) blank(ctx context.Context, m device.Memory) error {
	stage, err := d.stages.take(ctx)
	if err != nil {
		return err
	}
	defer d.stages.put(stage)
	clear(stage.Buffer())
	for at := gpu.Bytes(0); err == nil && at < m.Size(); at += d.stages.size {
		if err = ctx.Err(); err == nil {
			err = stage.Up(m, at, int(min(d.stages.size, m.Size()-at)))
		}
	}
	return errors.Join(err, stage.Wait())
}

// load reads a copy's files into its memory: pieces are read, summed and copied to
// the GPU, three at a time. Its record is then what is to be kept.
func (d *Daemon) load(c *copied) error {
	done, err := d.loads.take(c.ctx, c.key.Tenant)
	if err != nil {
		return err
	}
	defer done()
	begun := time.Now()
	l, err := within(c.ctx, d, c.source.readAgain, func(*layout) {})
	if err != nil {
		return err
	}
	record := wire.Record{
		Tenant: c.key.Tenant, Name: c.key.Name, Public: c.public, Tensors: l.tensors, Bytes: c.source.bytes(), Files: c.source.kept(),
	}
	sums := &sums{}
	sums.begin(l)
	if err := d.pipe(c, l.segments, sums); err != nil {
		return err
	}
	for _, f := range c.source.all() {
		if err := f.unchanged(); err != nil {
			return err
		}
	}
	record.SHA256, record.Content = sums.end()
	if was := c.origin.was; was != nil {
		if record.Content != was.Content {
			return wire.Errorf(wire.CodeChanged, "the content of %s is not what was put, though size and mtime are the same: put it again", c.origin.path)
		}
		record.Public = was.Public
	}
	if want := c.origin.sha; want != "" && want != record.SHA256 {
		return wire.Errorf(wire.CodeChecksum, "its SHA-256 is %s, expected %s", record.SHA256, want)
	}
	manifest, err := makeManifest(l.manifest)
	if err != nil {
		return err
	}
	d.log.Info("model loaded", "tenant", c.key.Tenant, "model", c.key.Name, "bytes", record.Bytes, "seconds", time.Since(begun).Seconds())
	d.metrics.seconds.Observe(time.Since(begun).Seconds())
	d.mu.Lock()
	defer d.mu.Unlock()
	c.source.close()
	c.source = nil
	c.record, c.manifest, c.header = record, manifest, l.header
	return nil
}

// filled is a stage with a piece of a model in it.
type filled struct {
	stage device.Stage
	at    gpu.Bytes
	n     int
	parts [][]byte // of tensors, in the order of the files: what is summed
	err   error
}

// pipe has one goroutine read pieces, and sums and copies them here.
func (d *Daemon) pipe(c *copied, segments []segment, sums *sums) error {
	ctx, cancel := context.WithCancel(c.ctx)
	pieces := make(chan filled)
	total := c.memory.Size()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.read(ctx, segments, total, pieces)
	}()
	stall := time.NewTimer(d.cfg.Stall)
	defer stall.Stop()
	defer d.await(ended, stall)
	defer cancel()
	for at := gpu.Bytes(0); at < total; {
		stall.Reset(d.cfg.Stall)
		select {
		case p := <-pieces:
			if p.err == nil {
				p.err = d.up(c, p, sums)
			}
			if p.stage != nil {
				d.stages.put(p.stage)
			}
			if p.err != nil {
				return p.err
			}
			at += gpu.Bytes(p.n)
			c.loaded.Store(int64(at))
		case <-ctx.Done():
			return ctx.Err()
		case <-stall.C:
			return d.stalled()
		}
	}
	return nil
}

// up copies a piece to the GPU and sums it meanwhile.
func (d *Daemon) up(c *copied, p filled, sums *sums) error {
	if err := p.stage.Up(c.memory, p.at, p.n); err != nil {
		return err
	}
	for _, part := range p.parts {
		sums.write(part)
	}
	return p.stage.Wait()
}

// read reads a model piece by piece, as it lies on the GPU: what is between the
// tensors and behind them is zero. A read that does not come back keeps its stage.
func (d *Daemon) read(ctx context.Context, segments []segment, total gpu.Bytes, pieces chan<- filled) {
	for at := gpu.Bytes(0); at < total; {
		p := filled{at: at}
		p.stage, p.err = d.stages.take(ctx)
		if p.err == nil {
			p.n = int(min(d.stages.size, total-at))
			p.parts, segments, p.err = readPiece(p.stage.Buffer()[:p.n], int64(at), segments)
		}
		select {
		case pieces <- p:
		case <-ctx.Done():
			if p.stage != nil {
				d.stages.put(p.stage)
			}
			return
		}
		if p.err != nil {
			return
		}
		at += gpu.Bytes(p.n)
	}
}

// readPiece fills a buffer with what lies at a place on the GPU, of the segments
// from there on, and returns the parts that are of tensors and the segments that
// are left.
func readPiece(buf []byte, at int64, segments []segment) (parts [][]byte, left []segment, err error) {
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
			parts = append(parts, part)
			done = to
		}
		if s.to+s.n > end {
			break
		}
		segments = segments[1:]
	}
	clear(buf[done-at:])
	return parts, segments, nil
}

// sums are the checksums of what is read.
type sums struct {
	file hash.Hash // of the one file; nil if it is an index
	text []byte    // of the index
	all  hash.Hash // of an index and all tensors
}

func (s *sums) begin(of *layout) {
	if of.text == nil {
		s.file = sha256.New()
		s.file.Write(of.header)
		return
	}
	s.text, s.all = of.text, sha256.New()
	s.all.Write(of.text)
}

func (s *sums) write(part []byte) {
	if s.file != nil {
		s.file.Write(part)
	} else {
		s.all.Write(part)
	}
}

// end is the sum as sha256sum prints it, of the file or the index, and what tells
// the content from others.
func (s *sums) end() (sum, content string) {
	if s.file != nil {
		sum = hex.EncodeToString(s.file.Sum(nil))
		return sum, sum
	}
	index := sha256.Sum256(s.text)
	return hex.EncodeToString(index[:]), "index:" + hex.EncodeToString(s.all.Sum(nil))
}

// makeManifest is a sealed file with what clients are told of a model's tensors.
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

// publish notes that a copy is the model's newest. Locked.
func (d *Daemon) publish(a policy.Publish) {
	c := d.copies[a.Copy]
	c.generation, c.record.Generation = a.Generation, a.Generation
	m := d.models[c.key]
	if m == nil {
		m = &model{}
		d.models[c.key] = m
	}
	if c.record.Content == m.record.Content { // else whoever put it says anew who may have it
		c.record.Public = c.record.Public || m.record.Public
	}
	m.record = c.record
	m.used = time.Now()
	if !c.store {
		m.loads++
		d.counts.loads++
	}
	d.keep(c.key)
}
