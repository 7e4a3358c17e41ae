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

// maxRecord is the size limit of a registration, in bytes. The daemon's own limit is lower.
const maxRecord = 1 << 20

// Registrations returns the instances registered in a run directory, whether or not they or
// the daemon are running. It omits the instances that Jobs returns. For an unreadable file,
// it returns only the ID.
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

// Jobs returns the registered instances that belong to an owner process: commands of gfaas
// run and executors of gfaas-kerneld. The owner may have ended.
func Jobs(runDir string) ([]wire.Job, error) {
	all, err := registered(runDir)
	return slices.DeleteFunc(all, func(r wire.Job) bool { return r.OwnerPID == 0 }), err
}

// openRunDir opens a run directory of the user: another user could have written the files of
// any other.
func openRunDir(runDir string) (*os.Root, error) {
	if err := CheckOwner(runDir); err != nil {
		return nil, err
	}
	return owndir.Open(runDir)
}

func registered(runDir string) ([]wire.Job, error) {
	root, err := openRunDir(runDir)
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
	var out []wire.Job
	for _, file := range files {
		id := strings.TrimSuffix(strings.TrimPrefix(file, "instances/"), ".json")
		if !instance.ValidID(id) {
			continue
		}
		r, err := readRecord(root, file)
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			continue
		}
		if err != nil || r.Instance != id {
			r = record{Job: wire.Job{Registration: wire.Registration{Instance: id}}}
		}
		out = append(out, r.Job)
	}
	return out, nil
}

// Registered returns an instance's registration in a run directory and the SHA-256 of its
// secret in hexadecimal. The error is fs.ErrNotExist if there is none.
func Registered(runDir, id string) (r wire.Registration, hash string, err error) {
	if !instance.ValidID(id) {
		return r, "", fs.ErrNotExist
	}
	root, err := openRunDir(runDir)
	if err != nil {
		return r, "", err
	}
	defer root.Close()
	found, err := readRecord(root, "instances/"+id+".json")
	return found.Registration, found.Hash, err
}

// record is the file of a registration.
type record struct {
	wire.Job
	Hash string `json:"secret_sha256"`
}

func readRecord(root *os.Root, file string) (r record, err error) {
	f, err := root.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	return r, json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r)
}
