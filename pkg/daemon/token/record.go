package token

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	instances "github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// record is a registration on disk. Instead of the secret it holds only its hash.
type record struct {
	wire.Registration
	Secret     string `json:"secret,omitempty"` // always empty; hides the registration's field
	SecretHash string `json:"secret_sha256"`
	OwnerStart uint64 `json:"owner_start,omitempty"`
	Parked     []int  `json:"parked,omitempty"` // processes whose memory is on the host

	// Grant is the grant that has registered the instance, for an instance with a grant. If the registration has ended
	// and only the grant is kept, GPU is empty.
	Grant *accepted `json:"grant,omitempty"`
}

// encode returns the instance's record. The caller holds the lock if the instance is registered.
func (i *instance) encode() []byte {
	r := record{Registration: i.reg, SecretHash: hex.EncodeToString(i.secret[:]), OwnerStart: i.ownerStart, Parked: i.parked.pids, Grant: i.grant}
	text, _ := json.MarshalIndent(r, "", "  ") // cannot fail: Validate accepts only finite numbers
	return append(text, '\n')
}

// parseRecord reads a registration file.
func parseRecord(text []byte) (*instance, error) {
	var r record
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&r); err != nil {
		return nil, err
	}
	if r.Grant != nil && r.GPU == "" {
		return &instance{reg: wire.Registration{Instance: r.Instance}, grant: r.Grant}, nil
	}
	hash, err := hex.DecodeString(r.SecretHash)
	if err != nil || len(hash) != sha256.Size {
		return nil, fmt.Errorf("invalid secret_sha256 %q: expected a SHA-256 in hexadecimal", r.SecretHash)
	}
	i := &instance{reg: r.Registration, secret: [sha256.Size]byte(hash), ownerStart: r.OwnerStart, parked: parked{pids: r.Parked}, grant: r.Grant}
	if err := validate(i.reg); err != nil {
		return nil, err
	}
	i.reg.Secret = ""
	return i, nil
}

// validate checks a registration whose secret is kept as a hash.
func validate(reg wire.Registration) error {
	reg.Secret = "kept as a hash"
	return reg.Validate()
}

// records manages the files of the registrations, from which the next daemon restores the instances.
type records struct {
	dir      string
	log      *slog.Logger
	volatile bool // a crash of the node may lose records
}

func (r records) path(id string) string { return filepath.Join(r.dir, id+".json") }

// save writes the record of an instance. It waits for the disk only if the instance has neither an owner nor a grant:
// after a crash of the node no owners exist, and containers that are started again present their grants again.
func (r records) save(reg *wire.Registration, text []byte) error {
	if reg.OwnerPID == 0 && !r.volatile {
		return renameio.WriteFile(r.path(reg.Instance), text, 0o600)
	}
	return r.write(reg.Instance, text)
}

// write writes a record for the next daemon, without waiting for the disk.
func (r records) write(id string, text []byte) error {
	temp := r.path(id) + ".new" // load ignores files of this name
	err := os.WriteFile(temp, text, 0o600)
	if err == nil {
		err = os.Rename(temp, r.path(id))
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

func (r records) remove(id string) {
	if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Error("cannot remove a registration", "instance", id, "err", err)
	}
}

// load returns the instances of the previous daemon. It logs files that it cannot read and does not
// change them.
func (r records) load() ([]*instance, error) {
	files, err := fs.Glob(os.DirFS(r.dir), "*.json")
	if err != nil {
		return nil, err
	}
	var all []*instance
	for _, file := range files {
		path, id := filepath.Join(r.dir, file), strings.TrimSuffix(file, ".json")
		if !instances.ValidID(id) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			r.log.Error("cannot read a registration", "file", path, "err", err)
			continue
		}
		inst, err := parseRecord(text)
		if err == nil && inst.reg.Instance != id {
			err = fmt.Errorf("the file belongs to instance %q", inst.reg.Instance)
		}
		if err != nil {
			r.log.Error("invalid registration", "file", path, "err", err)
			continue
		}
		all = append(all, inst)
	}
	return all, nil
}
