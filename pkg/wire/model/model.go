// Package model is what the model daemon and its clients say to each other: one
// JSON object a packet, over a SOCK_SEQPACKET socket, and what the daemon keeps of
// each model.
package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gfaas/gfaas/pkg/safetensors"
)

// Limits of the protocol.
const (
	MaxRequest = 8 << 10  // bytes of a packet to the daemon
	MaxAnswer  = 64 << 10 // bytes of a packet from it
	maxName    = 255
	maxTenant  = 63
)

// Alignment is what every tensor's place in an allocation is a multiple of, bytes.
const Alignment = 256

// DefaultTenant is whose models are meant where none is named.
const DefaultTenant = "default"

// Operations.
const (
	OpGet     = "get"     // hold a model's copy, loading it if need be; descriptors: an open file, if there is one
	OpPut     = "put"     // load a model from the file that the descriptor is of
	OpStore   = "store"   // take memory to write a model into; descriptor: its manifest
	OpCommit  = "commit"  // publish what was stored
	OpRelease = "release" // hold a model's copy no longer
	OpRemove  = "rm"
	OpStat    = "stat"
	OpList    = "ls"
	OpRead    = "read"   // write a model's file from the GPU into a pipe; descriptor: its end for writing
	OpHold    = "hold"   // have a process hold a model for as long as it lives; descriptor: its pidfd
	OpTenant  = "tenant" // have a socket for a tenant
)

// Request is a packet to the daemon.
type Request struct {
	Op        string          `json:"op"`
	ID        json.RawMessage `json:"id,omitempty"` // repeated in the answer
	Name      string          `json:"name,omitempty"`
	Tenant    string          `json:"tenant,omitempty"`     // model.sock only
	TimeoutMS int64           `json:"timeout_ms,omitempty"` // for the wait for room, or for another's store
	Size      int64           `json:"size,omitempty"`       // of a store, bytes
	Source    string          `json:"source,omitempty"`     // put, model.sock only: the file's absolute path
	SHA256    string          `json:"sha256,omitempty"`     // put: what the file must have
	Public    bool            `json:"public,omitempty"`     // put, store: for all tenants
	Release   int64           `json:"generation,omitempty"` // release: of which generation; 0 is the one got first
	After     string          `json:"after,omitempty"`      // ls: the last name of the page before
	AfterOf   string          `json:"after_tenant,omitempty"`
}

// Answer is a packet from the daemon.
type Answer struct {
	OK         bool            `json:"ok"`
	ID         json.RawMessage `json:"id,omitempty"`
	Error      *Error          `json:"error,omitempty"`
	Name       string          `json:"name,omitempty"`
	Tenant     string          `json:"tenant,omitempty"`
	Generation int64           `json:"generation,omitempty"`
	SHA256     string          `json:"sha256,omitempty"`
	GPU        string          `json:"gpu,omitempty"`    // the GPU's UUID
	Size       int64           `json:"size,omitempty"`   // of the allocation, bytes
	Model      *Status         `json:"model,omitempty"`  // stat of a model
	Daemon     *Totals         `json:"daemon,omitempty"` // stat without a name
	Models     []Status        `json:"models,omitzero"`  // ls
	More       *bool           `json:"more,omitempty"`   // ls: there is another page
}

// Status is how a model stands.
type Status struct {
	Name       string     `json:"name"`
	Tenant     string     `json:"tenant"`
	Public     bool       `json:"public"`
	State      string     `json:"state"` // StateGPU, StateLoading or StateFile
	Bytes      int64      `json:"bytes"` // of the file
	GPUBytes   int64      `json:"gpu_bytes"`
	Loaded     int64      `json:"loaded_bytes,omitempty"` // of what is being loaded
	Tensors    int        `json:"tensors"`
	SHA256     string     `json:"sha256"`
	Generation int64      `json:"generation"`
	Refs       int        `json:"refs"`
	Source     string     `json:"source"` // empty: no file that the daemon could read again
	Loads      int64      `json:"loads"`  // since the daemon began
	LastUsed   *time.Time `json:"last_used"`
	Why        string     `json:"why,omitempty"` // what a load waits for
}

// States of a model.
const (
	StateGPU     = "gpu"
	StateLoading = "loading"
	StateFile    = "file" // not on the GPU; it can be loaded
)

// Totals is how the daemon stands.
type Totals struct {
	GPU       string `json:"gpu"`
	Capacity  int64  `json:"capacity_bytes"`
	Used      int64  `json:"used_bytes"`
	Models    int    `json:"models"`
	Refs      int    `json:"refs"`
	Hits      int64  `json:"hits"`
	Loads     int64  `json:"loads"`
	Evictions int64  `json:"evictions"`
}

// Codes of errors.
const (
	CodeAbsent      = "absent"
	CodeInvalidFile = "invalid-file"
	CodeChecksum    = "checksum" // not what the request demands
	CodeChanged     = "changed"  // the file is not what it was
	CodeCapacity    = "capacity"
	CodeBusy        = "busy"
	CodeGPUMemory   = "gpu-memory"
	CodeSliceMemory = "slice-memory" // a store beyond the memory limit of its client's slice
	CodeDenied      = "denied"
	CodeUsage       = "usage"
	CodeInternal    = "internal"
)

// Error is why a request was not met.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Refusal is the code; there is no place.
func (e *Error) Refusal() (code, where string) { return e.Code, "" }

// Errorf is an Error of that code.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ParseRequest reads a packet. Unknown keys are passed over, as what later
// versions say; so are those that are written otherwise, such as Name.
func ParseRequest(packet []byte) (r Request, err error) {
	if len(packet) > MaxRequest {
		return r, fmt.Errorf("a packet of more than %d bytes", MaxRequest)
	}
	if text := bytes.TrimLeft(packet, " \t\r\n"); len(text) > 0 && text[0] != '{' {
		return r, errors.New("not a request: expected an object")
	}
	if err := jsonv2.Unmarshal(packet, &r, jsontext.AllowDuplicateNames(true)); err != nil {
		return r, fmt.Errorf("not a request: %w", err)
	}
	return r, nil
}

// Both are compiled when they are first needed, not at every program's start.
var (
	namePattern   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`) })
	tenantPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`) })
)

// CheckName says what is wrong with a model's name, if anything.
func CheckName(name string) error {
	if len(name) > maxName || !namePattern().MatchString(name) {
		return fmt.Errorf("%.300q is not a model's name: expected at most %d letters, digits and ._/-, first a letter or digit", name, maxName)
	}
	return nil
}

// CheckTenant says what is wrong with a tenant's name, if anything. It becomes
// part of a file's.
func CheckTenant(name string) error {
	if len(name) > maxTenant || !tenantPattern().MatchString(name) {
		return fmt.Errorf("%.100q is not a tenant's name: expected at most %d letters, digits and ._-, first and last a letter or digit", name, maxTenant)
	}
	return nil
}

// FileOf is the file that a name means in a folder of models; false where it could
// mean one outside.
func FileOf(dir, name string) (string, bool) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", false
	}
	file := name + ".safetensors"
	if !filepath.IsLocal(file) {
		return "", false
	}
	return filepath.Join(dir, file), true
}

// Place is where a tensor is in an allocation.
type Place struct {
	Name   string
	DType  string
	Shape  []int64
	Offset int64
	Bytes  int64
}

// AppendManifest appends what a model's clients are told of its tensors:
// {"tensors":{NAME:{"dtype","shape","offset","bytes"}},"metadata":{}}.
func AppendManifest(out []byte, places []Place, metadata map[string]string) ([]byte, error) {
	var err error
	out = append(out, `{"tensors":{`...)
	for i, p := range places {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = jsontext.AppendQuote(out, p.Name); err != nil {
			return nil, fmt.Errorf("name of a tensor: %w", err)
		}
		out = append(out, `:{"dtype":`...)
		if out, err = jsontext.AppendQuote(out, p.DType); err != nil {
			return nil, err
		}
		out = append(out, `,"shape":[`...)
		for j, d := range p.Shape {
			if j > 0 {
				out = append(out, ',')
			}
			out = fmt.Append(out, d)
		}
		out = fmt.Appendf(out, `],"offset":%d,"bytes":%d}`, p.Offset, p.Bytes)
	}
	out = append(out, `},"metadata":`...)
	if metadata == nil {
		metadata = map[string]string{}
	}
	text, err := jsonv2.Marshal(metadata, jsonv2.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	return append(append(out, text...), '}'), nil
}

// manifest is the same as a document.
type manifest struct {
	Tensors  map[string]entry  `json:"tensors"`
	Metadata map[string]string `json:"metadata"`
}

type entry struct {
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
}

// ParseManifest reads a manifest for an allocation of that size, in bytes, as strictly
// as a file's header is read: no key twice, and tensors of known types, each as long as
// its shape makes it and none within another. They come in the order of their places.
func ParseManifest(r io.Reader, size int64) (places []Place, metadata map[string]string, err error) {
	const most = 256 << 20 // bytes
	var text bytes.Buffer
	if sized, ok := r.(interface{ Size() int64 }); ok {
		text.Grow(int(min(sized.Size(), most)) + bytes.MinRead)
	}
	if _, err := text.ReadFrom(io.LimitReader(r, most+1)); err != nil {
		return nil, nil, err
	}
	if text.Len() > most {
		return nil, nil, errors.New("a manifest of more than 256 MiB")
	}
	var m manifest
	if err := jsonv2.Unmarshal(text.Bytes(), &m); err != nil {
		return nil, nil, fmt.Errorf("not a manifest: %w", err)
	}
	if m.Tensors == nil {
		return nil, nil, errors.New("not a manifest: no tensors")
	}
	for name, e := range m.Tensors {
		err := safetensors.CheckLength(e.DType, e.Shape, e.Bytes)
		switch {
		case e.Shape == nil:
			err = errors.New("no shape, expected one such as [2,3]")
		case e.Offset < 0 || e.Bytes < 0 || e.Bytes > size-e.Offset || e.Offset%Alignment != 0:
			err = fmt.Errorf("%d bytes at %d, expected a multiple of %d and an end within %d", e.Bytes, e.Offset, Alignment, size)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %.100q: %w", name, err)
		}
		places = append(places, Place{name, e.DType, e.Shape, e.Offset, e.Bytes})
	}
	slices.SortFunc(places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Name, b.Name))
	})
	end := int64(0) // of those before
	for _, p := range places {
		if p.Bytes > 0 && p.Offset < end {
			return nil, nil, fmt.Errorf("tensor %.100q: begins at %d, within the tensor before, which ends at %d", p.Name, p.Offset, end)
		}
		end = max(end, p.Offset+p.Bytes)
	}
	return places, m.Metadata, nil
}

// Record is what is kept of a model.
type Record struct {
	Tenant     string `json:"tenant"`
	Name       string `json:"name"`
	Public     bool   `json:"public,omitempty"`
	Generation int64  `json:"generation"`
	SHA256     string `json:"sha256"`
	Content    string `json:"content"` // tells it from other contents
	Tensors    int    `json:"tensors"`
	Bytes      int64  `json:"bytes"`
	Files      []File `json:"files"` // none: there is nothing to load it from. An index comes first.
}

// File is a file of a model as it was. A file that replaces it can have the same size
// and mtime (a package store, a reproducible image layer, cp -p): its inode and ctime
// differ. Records of earlier daemons have neither.
type File struct {
	Path   string    `json:"path"` // absolute
	Size   int64     `json:"size"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime,omitzero"`
	Device uint64    `json:"device,omitempty"`
	Inode  uint64    `json:"inode,omitempty"`
}

// Same reports whether two files are one file with the same content, as far as the
// file system knows. A write through a mapping can escape it.
func (f File) Same(other File) bool {
	return f.Path == other.Path && f.Size == other.Size && f.MTime.Equal(other.MTime) && f.CTime.Equal(other.CTime) &&
		f.Device == other.Device && f.Inode == other.Inode
}
