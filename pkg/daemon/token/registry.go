package token

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	instances "github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// record is a registration on disk: the secret is kept as a hash only.
type record struct {
	wire.Registration
	Secret     string `json:"secret,omitempty"` // shadows the one that is not kept
	SecretHash string `json:"secret_sha256"`
	OwnerStart uint64 `json:"owner_start,omitempty"`
}

// newInstance checks a registration and takes its secret out.
func newInstance(reg wire.Registration) (*instance, error) {
	if err := reg.Validate(); err != nil {
		return nil, err
	}
	i := &instance{secret: sha256.Sum256([]byte(reg.Secret))}
	if reg.OwnerPID != 0 {
		if i.ownerStart = startTime(reg.OwnerPID); i.ownerStart == 0 {
			return nil, fmt.Errorf("instance %s: owner_pid %d is no process", reg.Instance, reg.OwnerPID)
		}
	}
	reg.Secret = ""
	i.reg = reg
	return i, nil
}

func (d *Daemon) recordPath(id string) string { return filepath.Join(d.instancesDir(), id+".json") }

// encode prints the instance as it is kept on disk.
func (i *instance) encode() ([]byte, error) {
	r := record{Registration: i.reg, SecretHash: hex.EncodeToString(i.secret[:]), OwnerStart: i.ownerStart}
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

// save writes a registration so that the next daemon knows it.
func (d *Daemon) save(i *instance) error {
	text, err := i.encode()
	if err != nil {
		return err
	}
	return renameio.WriteFile(d.recordPath(i.reg.Instance), text, 0o600)
}

func (d *Daemon) forgetFile(id string) {
	if err := os.Remove(d.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Error("cannot remove a registration", "instance", id, "err", err)
	}
}

// parseRecord reads a registration file.
func parseRecord(text []byte) (*instance, error) {
	var r record
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&r); err != nil {
		return nil, err
	}
	hash, err := hex.DecodeString(r.SecretHash)
	if err != nil || len(hash) != sha256.Size {
		return nil, fmt.Errorf("secret_sha256 %q is no SHA-256", r.SecretHash)
	}
	i := &instance{reg: r.Registration, secret: [sha256.Size]byte(hash), ownerStart: r.OwnerStart}
	i.reg.Secret = "kept as a hash"
	if err := i.reg.Validate(); err != nil {
		return nil, err
	}
	i.reg.Secret = ""
	return i, nil
}

// loadRegistrations takes over what the daemon before knew. A file that
// cannot be read is left alone and said.
func (d *Daemon) loadRegistrations() error {
	files, err := fs.Glob(os.DirFS(d.instancesDir()), "*.json")
	if err != nil {
		return err
	}
	for _, file := range files {
		path, id := filepath.Join(d.instancesDir(), file), strings.TrimSuffix(file, ".json")
		if !instances.ValidID(id) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			d.log.Error("cannot read a registration", "file", path, "err", err)
			continue
		}
		inst, err := parseRecord(text)
		if err == nil && inst.reg.Instance != id {
			err = fmt.Errorf("it is of instance %q", inst.reg.Instance)
		}
		if err != nil {
			d.log.Error("not a registration", "file", path, "err", err)
			continue
		}
		d.add(inst)
		d.log.Info("instance known from before", "instance", id, "gpu", inst.reg.GPU)
	}
	return nil
}

// startTime tells when a process started, in clock ticks since boot, or 0 if
// there is no such process. A zombie counts as none.
func startTime(pid int) uint64 {
	if s, err := procfs.Read(pid); err == nil && !s.Ended() {
		return s.Start
	}
	return 0
}
