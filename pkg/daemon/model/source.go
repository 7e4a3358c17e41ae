package model

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/safetensors"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// origin is where a copy's weights come from.
type origin struct {
	file *os.File     // a client's, opened; nil if the path is to be opened
	path string       // absolute; empty if nobody knows it
	was  *wire.Record // what the files must still be; nil: anything
	sha  string       // what the sum must be; empty: anything
}

// source is the opened files of a model. It may wait for room for a day, with others:
// what the files say, which may be much, is read again when it is loaded.
type source struct {
	files []*opened // of the tensors
	index *opened   // nil if the model is one file
	sum   string    // of the index; empty: there is none
	image gpu.Bytes // from the first tensor to the last, on the GPU
	host  gpu.Bytes // of header and manifest, which are kept while it is there
}

// layout is what the files of a model say, and where everything in them goes.
type layout struct {
	text     []byte // of the index; nil if there is none
	header   []byte // of the only file, all before its first tensor; nil if there are several
	manifest []byte
	segments []segment // in the order of their places on the GPU
	image    gpu.Bytes // from the first to the last of them
	tensors  int
}

// host is how much of it is kept.
func (l *layout) host() gpu.Bytes { return gpu.Bytes(len(l.header) + len(l.manifest)) }

// opened is a file as it was when it was opened.
type opened struct {
	*os.File
	name string // in messages; empty if there is only one
	path string
	size int64
	was  wire.File
}

// segment is a piece of a file that goes to a place on the GPU.
type segment struct {
	file     *opened
	from, to int64
	n        int64
}

// openFile opens a regular file. What is none is not waited for.
func openFile(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// regular notes how a file is, if it is one that can be read in any place.
func regular(f *os.File, path string) (*opened, error) {
	if f == nil {
		var err error
		if f, err = openFile(path); err != nil {
			return nil, err
		}
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = wire.Errorf(wire.CodeInvalidFile, "it is %s, expected a regular file", kind(info.Mode()))
	}
	if err == nil {
		err = readable(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &opened{File: f, path: path, size: info.Size(), was: identify(path, info)}, nil
}

// identify returns what tells a file from another at the same path.
func identify(path string, info fs.FileInfo) wire.File {
	st := info.Sys().(*syscall.Stat_t)
	return wire.File{
		Path: path, Size: info.Size(), MTime: info.ModTime(), CTime: time.Unix(st.Ctim.Unix()), Device: st.Dev, Inode: st.Ino,
	}
}

// readable says whether a file that was passed can be read at all.
func readable(f *os.File) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_ACCMODE == unix.O_WRONLY || flags&unix.O_PATH != 0 {
		return wire.Errorf(wire.CodeInvalidFile, "it is not opened for reading")
	}
	return err
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// unchanged says whether a file is as it was when it was opened.
func (o *opened) unchanged() error {
	info, err := o.Stat()
	if err == nil && !identify(o.path, info).Same(o.was) {
		err = o.fault("it changed while it was read")
	}
	return err
}

// fault is an invalid-file of this file.
func (o *opened) fault(format string, args ...any) error {
	err := &safetensors.Error{File: o.name, Reason: fmt.Sprintf(format, args...)}
	return wire.Errorf(wire.CodeInvalidFile, "%v", err)
}

// invalid makes what is wrong with a file an error with its code.
func invalid(err error) error {
	var wrong *safetensors.Error
	if errors.As(err, &wrong) {
		return wire.Errorf(wire.CodeInvalidFile, "%v", err)
	}
	return err
}

// open opens the files of a model, and checks all that can be known of them without
// reading tensors. On an error everything is closed; the origin's file in any case
// belongs to the source.
func open(o origin, index bool) (s *source, err error) {
	s = &source{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	first, err := regular(o.file, o.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			if o.was != nil {
				err = wire.Errorf(wire.CodeChanged, "%s cannot be read any more: %v", o.path, err)
			} else {
				err = wire.Errorf(wire.CodeAbsent, "%v", err)
			}
		}
		return s, err
	}
	if index {
		s.index = first
		err = s.openShards()
	} else {
		s.files = []*opened{first}
	}
	if err == nil {
		err = s.compare(o.was)
	}
	var l *layout
	if err == nil {
		l, err = s.read()
	}
	if err == nil {
		s.image, s.host = l.image, l.host()
	}
	return s, err
}

func (s *source) close() {
	for _, f := range s.all() {
		_ = f.Close()
	}
}

// all are all files, the index first.
func (s *source) all() []*opened {
	if s.index == nil {
		return s.files
	}
	return append([]*opened{s.index}, s.files...)
}

// openShards opens the files that the index names, in its own folder.
func (s *source) openShards() error {
	if s.index.path == "" {
		return wire.Errorf(wire.CodeInvalidFile, "an index is read by its path, which is not known here: put it on the host")
	}
	_, x, err := s.readIndex()
	if err != nil {
		return err
	}
	for _, name := range x.Shards {
		shard, err := regular(nil, filepath.Join(filepath.Dir(s.index.path), name))
		if err != nil {
			return wire.Errorf(wire.CodeInvalidFile, "%s: %v", name, err)
		}
		shard.name = name
		s.files = append(s.files, shard)
	}
	return nil
}

// maxText is how long an index or a store's manifest may be, as a header, in bytes.
const maxText = 100_000_000

// readIndex reads the index. Its sum is noted, and must be that of the next time.
func (s *source) readIndex() ([]byte, *safetensors.Index, error) {
	if s.index.size > maxText {
		return nil, nil, s.index.fault("an index of %d bytes, expected at most %d", s.index.size, maxText)
	}
	text := make([]byte, s.index.size)
	if err := s.index.fill(text, 0); err != nil {
		return nil, nil, err
	}
	digest := sha256.Sum256(text)
	switch sum := hex.EncodeToString(digest[:]); s.sum {
	case "":
		s.sum = sum
	case sum:
	default:
		return nil, nil, s.index.fault("it changed while it was read")
	}
	x, err := safetensors.ParseIndex(text)
	return text, x, invalid(err)
}

// compare refuses files that differ from a record's in path, size or mtime. Files that
// pass may still have other content: load compares their sum.
func (s *source) compare(was *wire.Record) error {
	if was == nil {
		return nil
	}
	all := s.all()
	if len(all) != len(was.Files) {
		return wire.Errorf(wire.CodeChanged, "it is of %d files, and was of %d: put it again", len(all), len(was.Files))
	}
	for i, f := range all {
		if old := was.Files[i]; f.path != old.Path || f.size != old.Size || !f.was.MTime.Equal(old.MTime) {
			return wire.Errorf(wire.CodeChanged, "%s is not what it was: %d bytes of %s, and was %d of %s: put it again",
				f.path, f.size, f.was.MTime.UTC().Format(time.RFC3339), old.Size, old.MTime.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// same reports whether the files are those of a record, without reading them.
func (s *source) same(was *wire.Record) bool {
	return slices.EqualFunc(s.all(), was.Files, func(f *opened, old wire.File) bool { return f.was.Same(old) })
}

// read reads the index and the headers, and gives every tensor its place.
func (s *source) read() (*layout, error) {
	const most = 1 << 60 // bytes, so that sums and what is rounded up have room in an int64
	l := &layout{}
	var places []wire.Place
	var metadata map[string]string
	var x *safetensors.Index
	if s.index != nil {
		var err error
		if l.text, x, err = s.readIndex(); err != nil {
			return nil, err
		}
	}
	for _, f := range s.files {
		h, err := safetensors.Read(f, f.size)
		if err != nil {
			return nil, invalid(safetensors.In(f.name, err))
		}
		tensors := h.Tensors
		if x != nil {
			if tensors, err = x.Select(f.name, h); err != nil {
				return nil, invalid(err)
			}
		} else {
			l.header, metadata = make([]byte, h.Bytes), h.Metadata
			if err := f.fill(l.header, 0); err != nil {
				return nil, err
			}
		}
		for _, t := range tensors {
			if t.Bytes > most-int64(l.image) { // files may be mostly holes, and shards the same one again and again
				return nil, wire.Errorf(wire.CodeCapacity, "tensor %.100q ends behind %d bytes: no memory is so large", t.Name, int64(most))
			}
			at := (int64(l.image) + wire.Alignment - 1) / wire.Alignment * wire.Alignment
			places = append(places, wire.Place{Name: t.Name, DType: t.DType, Shape: t.Shape, Offset: at, Bytes: t.Bytes})
			l.segments = append(l.segments, segment{f, t.Offset, at, t.Bytes})
			l.image = gpu.Bytes(at + t.Bytes)
		}
	}
	l.tensors = len(places)
	var err error
	l.manifest, err = wire.AppendManifest(nil, places, metadata)
	return l, err
}

// readAgain reads them for memory that was taken since.
func (s *source) readAgain() (*layout, error) {
	l, err := s.read()
	if err == nil && (l.image != s.image || l.host() != s.host) {
		return nil, s.all()[0].fault("it changed while it was read")
	}
	return l, err
}

// bytes is how long the files are, together.
func (s *source) bytes() (sum int64) {
	for _, f := range s.files {
		sum += f.size
	}
	return sum
}

// kept is what is kept of the files; none where they could not be opened again.
func (s *source) kept() (files []wire.File) {
	for _, f := range s.all() {
		if f.path == "" {
			return nil
		}
		files = append(files, f.was)
	}
	return files
}

// isIndex says whether a file stands for others.
func isIndex(path string) bool { return strings.HasSuffix(path, safetensors.IndexSuffix) }

// pathOf is where a file that a client passed can be opened again from here: what
// it says if that is the same file, else what the kernel says, if that is. Empty if
// neither.
func pathOf(f *os.File, said string) string {
	mine, err := f.Stat()
	if err != nil {
		return ""
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	for _, path := range slices.Compact([]string{said, link}) {
		if path == "" || !filepath.IsAbs(path) || err != nil && path == link {
			continue
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(mine, there) {
			return path
		}
	}
	return ""
}
