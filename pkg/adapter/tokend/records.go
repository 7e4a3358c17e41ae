package tokend

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/wire"
)

// maxRecord is the largest registration that is read, in bytes; the daemon takes
// less.
const maxRecord = 1 << 20

// Registrations are the instances that the daemon of a run directory keeps, or the
// next one will, by their ids: whether one runs is no matter. Of a file that
// cannot be read there is the id. What gfaas run has registered, and ends itself,
// is left out.
func Registrations(runDir string) ([]wire.Registration, error) {
	if err := CheckOwner(runDir); err != nil { // they could be anybody's
		return nil, err
	}
	root, err := owndir.Open(runDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	files, err := fs.Glob(root.FS(), "instances/*.json")
	if err != nil {
		return nil, err
	}
	var out []wire.Registration
	for _, file := range files {
		id := strings.TrimSuffix(strings.TrimPrefix(file, "instances/"), ".json")
		if !instance.ValidID(id) {
			continue
		}
		r, err := readRecord(root, file)
		if errors.Is(err, fs.ErrNotExist) { // by now
			continue
		}
		if err != nil || r.Instance != id {
			r = wire.Registration{Instance: id}
		}
		if r.OwnerPID == 0 {
			out = append(out, r)
		}
	}
	return out, nil
}

// Registered returns what the daemon of a run directory keeps of an instance, with the
// secret's SHA-256 in hexadecimal. The error is an fs.ErrNotExist if it keeps nothing.
func Registered(runDir, id string) (r wire.Registration, hash string, err error) {
	if !instance.ValidID(id) {
		return r, "", fs.ErrNotExist
	}
	if err := CheckOwner(runDir); err != nil {
		return r, "", err
	}
	root, err := owndir.Open(runDir)
	if err != nil {
		return r, "", err
	}
	defer root.Close()
	f, err := root.Open("instances/" + id + ".json")
	if err != nil {
		return r, "", err
	}
	defer f.Close()
	var kept struct {
		wire.Registration
		Hash string `json:"secret_sha256"`
	}
	err = json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&kept)
	return kept.Registration, kept.Hash, err
}

func readRecord(root *os.Root, file string) (r wire.Registration, err error) {
	f, err := root.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	return r, json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r)
}
