// Package model defines the protocol between the model daemon (pkg/daemon/model) and its clients
// (pkg/adapter/modeld, libgfaas-model.so): a packet is one JSON object on a SOCK_SEQPACKET
// socket. It also defines manifests, which describe tensors in GPU memory, and the records that the
// daemon saves.
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

	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/safetensors"
)

// Limits of the protocol.
const (
	MaxRequest = 8 << 10  // bytes in a packet to the daemon
	MaxAnswer  = 64 << 10 // bytes in a packet from the daemon
	maxName    = 255
	maxTenant  = 63
)

// Alignment is the alignment of every tensor in an allocation, in bytes.
const Alignment = 256

// DefaultTenant is the tenant of requests that name none.
const DefaultTenant = "default"

// Operations, with the descriptor that may accompany the request.
const (
	OpGet     = "get"     // hold a model's copy, and load it if necessary; descriptor: an open file (optional)
	OpPut     = "put"     // load a model; descriptor: its file
	OpStore   = "store"   // allocate memory to write a model into; descriptor: its manifest
	OpTouch   = "touch"   // show that a store continues
	OpCommit  = "commit"  // publish a stored model
	OpRelease = "release" // release a model's copy
	OpRemove  = "rm"
	OpStat    = "stat"
	OpList    = "ls"
	OpRead    = "read"   // write a model's file from the GPU into a pipe; descriptor: the pipe's writing end
	OpHold    = "hold"   // transfer a hold to a process until the process ends; descriptor: its pidfd
	OpTenant  = "tenant" // open a socket for a tenant
)

// Request is a packet to the daemon.
type Request struct {
	Op        string          `json:"op"`
	ID        json.RawMessage `json:"id,omitempty"` // repeated in the answer
	Name      string          `json:"name,omitempty"`
	Tenant    string          `json:"tenant,omitempty"`     // model.sock only
	TimeoutMS int64           `json:"timeout_ms,omitempty"` // limit on waits for room and for another client's store
	Size      int64           `json:"size,omitempty"`       // store: bytes
	Source    string          `json:"source,omitempty"`     // put, model.sock only: the file's absolute path
	SHA256    string          `json:"sha256,omitempty"`     // put: required checksum of the file
	Public    bool            `json:"public,omitempty"`     // put, store: for all tenants
	Release   int64           `json:"generation,omitempty"` // release, hold: generation; 0: the first one granted
	After     string          `json:"after,omitempty"`      // ls: the last name of the previous page
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
	Size       int64           `json:"size,omitempty"`   // of the allocation in bytes
	Model      *Status         `json:"model,omitempty"`  // stat of a model
	Daemon     *Totals         `json:"daemon,omitempty"` // stat without a name
	Models     []Status        `json:"models,omitzero"`  // ls
	More       *bool           `json:"more,omitempty"`   // ls: there is another page
}

// Status describes the state of a model.
type Status struct {
	Name       string     `json:"name"`
	Tenant     string     `json:"tenant"`
	Public     bool       `json:"public"`
	State      string     `json:"state"` // StateGPU, StateLoading or StateFile
	Bytes      int64      `json:"bytes"` // of the file
	GPUBytes   int64      `json:"gpu_bytes"`
	Loaded     int64      `json:"loaded_bytes,omitempty"` // progress of a load
	Tensors    int        `json:"tensors"`
	SHA256     string     `json:"sha256"`
	Generation int64      `json:"generation"`
	Refs       int        `json:"refs"`
	Source     string     `json:"source"` // path of the file; empty: the daemon cannot load the model again
	Loads      int64      `json:"loads"`  // since the daemon started
	LastUsed   *time.Time `json:"last_used"`
	Why        string     `json:"why,omitempty"` // text form of Reason

	// Reason is the reason why a load waits, or how far it is.
	Reason reason.Reason `json:"reason,omitzero"`
}

// States of a model.
const (
	StateGPU     = "gpu"
	StateLoading = "loading"
	StateFile    = "file" // not on the GPU; it can be loaded
)

// Totals describes the state of the daemon.
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

// Error codes.
const (
	CodeAbsent      = "absent"
	CodeInvalidFile = "invalid-file"
	CodeChecksum    = "checksum" // the file's checksum differs from the request's
	CodeChanged     = "changed"  // the file differs from the recorded one
	CodeCapacity    = "capacity"
	CodeBusy        = "busy"
	CodeGPUMemory   = "gpu-memory"
	CodeSliceMemory = "slice-memory" // a store beyond the memory limit of its client's slice
	CodeDenied      = "denied"
	CodeUsage       = "usage"
	CodeInternal    = "internal"
)

// Error is the reason why a request failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Refusal returns the code of the error. The location is always empty.
func (e *Error) Refusal() (code, where string) { return e.Code, "" }

// Errorf returns an Error with the given code.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ParseRequest decodes a packet. It ignores unknown keys, which later versions may send. Keys are
// case-sensitive: "Name" is unknown.
func ParseRequest(packet []byte) (r Request, err error) {
	if len(packet) > MaxRequest {
		return r, fmt.Errorf("the request has more than %d bytes", MaxRequest)
	}
	if text := bytes.TrimLeft(packet, " \t\r\n"); len(text) > 0 && text[0] != '{' {
		return r, errors.New("invalid request: expected a JSON object")
	}
	if err := jsonv2.Unmarshal(packet, &r, jsontext.AllowDuplicateNames(true)); err != nil {
		return r, fmt.Errorf("invalid request: %w", err)
	}
	return r, nil
}

// The patterns are compiled on first use, not at the start of every program.
var (
	namePattern   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`) })
	tenantPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`) })
)

// CheckName returns an error if the name of a model is invalid.
func CheckName(name string) error {
	if len(name) > maxName || !namePattern().MatchString(name) {
		return fmt.Errorf("invalid model name %.300q: expected at most %d letters, digits, '.', '_', '/' or '-', starting with a letter or digit", name, maxName)
	}
	return nil
}

// CheckTenant returns an error if the name of a tenant is invalid. The name becomes part of a file
// name.
func CheckTenant(name string) error {
	if len(name) > maxTenant || !tenantPattern().MatchString(name) {
		return fmt.Errorf("invalid tenant name %.100q: expected at most %d letters, digits, '.', '_' or '-', with a letter or digit first and last", name, maxTenant)
	}
	return nil
}

// FileOf returns the path of a named model in a folder of models. It returns false if the path
// would be outside the folder.
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

// Place describes a tensor's range in an allocation, in bytes.
type Place struct {
	Name   string  `json:"-"` // the key of the tensor in a manifest
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"`
	Bytes  int64   `json:"bytes"`
}

// AppendManifest appends a manifest, which describes a model's tensors to clients:
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
		text, err := jsonv2.Marshal(p)
		if err != nil {
			return nil, err
		}
		out = append(append(out, ':'), text...)
	}
	out = append(out, `},"metadata":`...)
	text, err := jsonv2.Marshal(metadata, jsonv2.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	return append(append(out, text...), '}'), nil
}

// ParseManifest reads a manifest for an allocation of size bytes. It is as strict as the parser of
// safetensors headers: keys must be unique, types known, lengths consistent with the shapes, and
// tensors must not overlap. It returns the tensors sorted by offset.
func ParseManifest(r io.Reader, size int64) (places []Place, metadata map[string]string, err error) {
	const maxBytes = 256 << 20
	var text bytes.Buffer
	if sized, ok := r.(interface{ Size() int64 }); ok {
		text.Grow(int(min(sized.Size(), maxBytes)) + bytes.MinRead)
	}
	if _, err := text.ReadFrom(io.LimitReader(r, maxBytes+1)); err != nil {
		return nil, nil, err
	}
	if text.Len() > maxBytes {
		return nil, nil, errors.New("the manifest has more than 256 MiB")
	}
	var m struct {
		Tensors  map[string]Place  `json:"tensors"`
		Metadata map[string]string `json:"metadata"`
	}
	if err := jsonv2.Unmarshal(text.Bytes(), &m); err != nil {
		return nil, nil, fmt.Errorf("invalid manifest: %w", err)
	}
	if m.Tensors == nil {
		return nil, nil, errors.New("invalid manifest: it has no tensors")
	}
	for name, p := range m.Tensors {
		err := safetensors.CheckLength(p.DType, p.Shape, p.Bytes)
		switch {
		case name == safetensors.MetadataKey:
			err = errors.New("a file has its metadata under this name")
		case p.Shape == nil:
			err = errors.New("shape is missing, expected a list such as [2,3]")
		case p.Offset < 0 || p.Bytes < 0 || p.Bytes > size-p.Offset || p.Offset%Alignment != 0:
			err = fmt.Errorf("%d bytes at %d, expected a multiple of %d and an end within %d", p.Bytes, p.Offset, Alignment, size)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %.100q: %w", name, err)
		}
		p.Name = name
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Name, b.Name))
	})
	end := int64(0) // of the preceding tensors
	for _, p := range places {
		if p.Bytes > 0 && p.Offset < end {
			return nil, nil, fmt.Errorf("tensor %.100q begins at %d, within the previous tensor, which ends at %d", p.Name, p.Offset, end)
		}
		end = max(end, p.Offset+p.Bytes)
	}
	return places, m.Metadata, nil
}

// Record is the data about a model that the daemon saves.
type Record struct {
	Tenant     string `json:"tenant"`
	Name       string `json:"name"`
	Public     bool   `json:"public,omitempty"`
	Generation int64  `json:"generation"`
	SHA256     string `json:"sha256"`
	Content    string `json:"content"` // identifies the content
	Tensors    int    `json:"tensors"`
	Bytes      int64  `json:"bytes"`
	Files      []File `json:"files"` // to load it from, an index first; empty: it cannot be loaded again
}

// File identifies a file of a model at the time of loading. A replacement can have the same size
// and mtime (a package store, a reproducible image layer, cp -p), but its inode and ctime differ.
// Records of earlier daemons lack CTime, Device and Inode.
type File struct {
	Path   string    `json:"path"` // absolute
	Size   int64     `json:"size"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime,omitzero"`
	Device uint64    `json:"device,omitempty"`
	Inode  uint64    `json:"inode,omitempty"`
}

// Same reports whether two values identify one file with the same content, as far as the file
// system records changes. It can miss a write through a mapping.
func (f File) Same(other File) bool {
	return f.Path == other.Path && f.Size == other.Size && f.MTime.Equal(other.MTime) && f.CTime.Equal(other.CTime) &&
		f.Device == other.Device && f.Inode == other.Inode
}
