package tokend

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/wire"
)

// maxRecord is the largest registration that is read, in bytes; the daemon takes
// less.
const maxRecord = 1 << 20

// Owned is the registration of an instance that a process has registered for itself and
// ends itself, such as the command of gfaas run.
type Owned struct {
	wire.Registration
	OwnerStart uint64 `json:"owner_start"` // tells the owner from a later process with its number
}

// Registrations returns the instances that the daemon of a run directory has registered,
// or will have once it starts, by their ids, whether they run or not. Of a file that
// cannot be read it returns the id. It leaves out those of Jobs.
func Registrations(runDir string) ([]wire.Registration, error) {
	all, err := registered(runDir)
	var out []wire.Registration
	for _, r := range all {
		if r.OwnerPID == 0 {
			out = append(out, r.Registration)
		}
	}
	return out, err
}

// Jobs returns the registered instances that belong to a process, by their ids: commands
// of gfaas run and executors of gfaas-kerneld. The owner of one may have ended.
func Jobs(runDir string) ([]Owned, error) {
	all, err := registered(runDir)
	return slices.DeleteFunc(all, func(r Owned) bool { return r.OwnerPID == 0 }), err
}

func registered(runDir string) ([]Owned, error) {
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
	var out []Owned
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
			r = Owned{Registration: wire.Registration{Instance: id}}
		}
		out = append(out, r)
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

func readRecord(root *os.Root, file string) (r Owned, err error) {
	f, err := root.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	return r, json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r)
}
