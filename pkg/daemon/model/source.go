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

// origin describes where a copy's weights are read from, and what to verify.
type origin struct {
	file   *os.File     // passed by a client; nil: open path
	path   string       // absolute; empty if unknown
	record *wire.Record // record that the files must match; nil: no requirement
	sha    string       // required SHA-256; empty: no requirement
}

// source is a model's set of opened files. It may wait for room for a day, together with others, so
// it keeps only sizes; reread reads the headers, which may be large, when the copy is loaded.
type source struct {
	files []*openedFile // with tensors
	index *openedFile   // nil if the model is a single file
	sum   string        // SHA-256 of the index; empty: not read yet
	image gpu.Bytes     // size of the GPU layout
	host  gpu.Bytes     // host memory for header and manifest of the loaded copy
}

// layout describes a model's tensors and their places on the GPU.
type layout struct {
	text     []byte // of the index; nil if there is none
	header   []byte // of the only file: its bytes before the first tensor; nil for several files
	manifest []byte
	segments []segment // in the order of their GPU offsets
	image    gpu.Bytes // size of the GPU layout
	tensors  int
}

// host returns how many bytes of host memory the loaded copy needs.
func (l *layout) host() gpu.Bytes { return gpu.Bytes(len(l.header) + len(l.manifest)) }

// openedFile is an open file and its identity at the time of opening.
type openedFile struct {
	*os.File
	name     string // for messages; empty for a model's only file
	path     string
	size     int64
	identity wire.File
}

// segment is a tensor's range in a file and its offset in the GPU layout.
type segment struct {
	file     *openedFile
	from, to int64
	n        int64
}

// openFile opens a file for reading. It does not block on pipes and devices.
func openFile(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// regular returns f, or the file at path if f is nil, as an opened file. It fails unless that is a
// readable regular file. It closes f after an error.
func regular(f *os.File, path string) (*openedFile, error) {
	if f == nil {
		var err error
		if f, err = openFile(path); err != nil {
			return nil, err
		}
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = wire.Errorf(wire.CodeInvalidFile, "the file is %s, expected a regular file", kind(info.Mode()))
	}
	if err == nil {
		err = readable(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &openedFile{File: f, path: path, size: info.Size(), identity: identify(path, info)}, nil
}

// identify returns data that distinguish a file from others at the same path.
func identify(path string, info fs.FileInfo) wire.File {
	st := info.Sys().(*syscall.Stat_t)
	return wire.File{
		Path: path, Size: info.Size(), MTime: info.ModTime(), CTime: time.Unix(st.Ctim.Unix()), Device: st.Dev, Inode: st.Ino,
	}
}

// readable returns an error if a passed descriptor is not open for reading.
func readable(f *os.File) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_ACCMODE == unix.O_WRONLY || flags&unix.O_PATH != 0 {
		return wire.Errorf(wire.CodeInvalidFile, "the file is not open for reading")
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

// unchanged returns an error if the file has changed since it was opened.
func (o *openedFile) unchanged() error {
	info, err := o.Stat()
	if err == nil && !identify(o.path, info).Same(o.identity) {
		err = o.fault("the file changed while it was read")
	}
	return err
}

// fault returns an invalid-file error for this file.
func (o *openedFile) fault(format string, args ...any) error {
	err := &safetensors.Error{File: o.name, Reason: fmt.Sprintf(format, args...)}
	return wire.Errorf(wire.CodeInvalidFile, "%v", err)
}

// invalid converts an error of package safetensors to an invalid-file error.
func invalid(err error) error {
	var formatErr *safetensors.Error
	if errors.As(err, &formatErr) {
		return wire.Errorf(wire.CodeInvalidFile, "%v", err)
	}
	return err
}

// open opens the files of a model, reads their headers and checks everything except the tensors.
// It takes over o.file. After an error all files are closed.
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
			if o.record != nil {
				err = wire.Errorf(wire.CodeChanged, "cannot read %s again: %v", o.path, err)
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
		s.files = []*openedFile{first}
	}
	if err == nil {
		err = s.compare(o.record)
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
	for _, f := range s.allFiles() {
		_ = f.Close()
	}
}

// allFiles returns all files, the index first.
func (s *source) allFiles() []*openedFile {
	if s.index == nil {
		return s.files
	}
	return append([]*openedFile{s.index}, s.files...)
}

// openShards opens the files that the index lists, in the folder of the index.
func (s *source) openShards() error {
	if s.index.path == "" {
		return wire.Errorf(wire.CodeInvalidFile, "an index needs the path of its file, which only model.sock accepts: put the model on the host")
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

// maxText limits an index or a store's manifest to the length of a safetensors header, in bytes.
const maxText = 100_000_000

// readIndex reads the index. It fails if the index has changed since the first call.
func (s *source) readIndex() ([]byte, *safetensors.Index, error) {
	if s.index.size > maxText {
		return nil, nil, s.index.fault("the index has %d bytes, expected at most %d", s.index.size, maxText)
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
		return nil, nil, s.index.fault("the file changed while it was read")
	}
	x, err := safetensors.ParseIndex(text)
	return text, x, invalid(err)
}

// compare returns an error if the files differ from a record's in path, size or mtime. Their content
// may differ nevertheless; load compares checksums.
func (s *source) compare(record *wire.Record) error {
	if record == nil {
		return nil
	}
	files := s.allFiles()
	if len(files) != len(record.Files) {
		return wire.Errorf(wire.CodeChanged, "the model now has %d files, and had %d when it was put: put it again", len(files), len(record.Files))
	}
	for i, f := range files {
		if old := record.Files[i]; f.path != old.Path || f.size != old.Size || !f.identity.MTime.Equal(old.MTime) {
			return wire.Errorf(wire.CodeChanged, "%s has changed: it has %d bytes and the mtime %s, and had %d bytes and %s when it was put: put it again",
				f.path, f.size, f.identity.MTime.UTC().Format(time.RFC3339), old.Size, old.MTime.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// sameFiles reports whether the files' identities equal those in a record. It does not read the
// files.
func (s *source) sameFiles(record *wire.Record) bool {
	return slices.EqualFunc(s.allFiles(), record.Files, func(f *openedFile, old wire.File) bool { return f.identity.Same(old) })
}

// read reads the index and the headers and assigns a place on the GPU to each tensor.
func (s *source) read() (*layout, error) {
	const maxBytes = 1 << 60 // bytes: sums and rounding must not overflow an int64
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
			if t.Bytes > maxBytes-int64(l.image) { // possible with sparse files, or an index that repeats a shard
				return nil, wire.Errorf(wire.CodeCapacity, "tensor %.100q ends beyond %d bytes, which no memory can hold", t.Name, int64(maxBytes))
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

// reread reads the layout once more, and fails if it no longer fits the memory allocated for it.
func (s *source) reread() (*layout, error) {
	l, err := s.read()
	if err == nil && (l.image != s.image || l.host() != s.host) {
		return nil, s.allFiles()[0].fault("the file changed while it was read")
	}
	return l, err
}

// bytes returns the total size of the files with tensors.
func (s *source) bytes() (sum int64) {
	for _, f := range s.files {
		sum += f.size
	}
	return sum
}

// recordFiles returns the identities to record, or nil if a file has no path to open it again.
func (s *source) recordFiles() (files []wire.File) {
	for _, f := range s.allFiles() {
		if f.path == "" {
			return nil
		}
		files = append(files, f.identity)
	}
	return files
}

// isIndex reports whether the path names an index of several files.
func isIndex(path string) bool { return strings.HasSuffix(path, safetensors.IndexSuffix) }

// pathOf returns a path at which the daemon can open a passed file again: the path that the client
// stated or, if that is another file, the path that the kernel reports. It returns "" if neither
// leads to the same file.
func pathOf(f *os.File, stated string) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	for _, path := range slices.Compact([]string{stated, link}) {
		if path == "" || !filepath.IsAbs(path) || err != nil && path == link {
			continue
		}
		if other, err := os.Stat(path); err == nil && os.SameFile(info, other) {
			return path
		}
	}
	return ""
}

// fill reads len(buf) bytes at an offset, or returns an error.
func (o *openedFile) fill(buf []byte, at int64) error {
	return invalid(safetensors.In(o.name, safetensors.ReadAt(o, buf, at)))
}
