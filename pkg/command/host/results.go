package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// keepResults is how long the results of commands of gfaas run are kept.
const keepResults = 7 * 24 * time.Hour

// Results holds the results of commands of gfaas run, by the name of their slices. It is next to the state file, because a run
// directory may be in memory.
type Results struct{ dir string }

// ResultsOf returns the results of a run directory.
func ResultsOf(runDir string) Results { return Results{besideState("jobs", runDir)} }

func (r Results) folder(id string) string { return filepath.Join(r.dir, id) }

// Read returns the result of a command, or fs.ErrNotExist.
func (r Results) Read(id string) (job.Result, error) { return job.Read(r.folder(id)) }

// Remove removes the result of a command. A missing one is no error.
func (r Results) Remove(id string) error { return os.RemoveAll(r.folder(id)) }

// Expect makes the command with that name store its result, even if it would not do so otherwise.
func (r Results) Expect(id string) error {
	err := owndir.Ensure(r.dir)
	if err == nil {
		err = owndir.Ensure(r.folder(id))
	}
	return err
}

// Expected reports whether a process waits for the result of a command (Expect).
func (r Results) Expected(id string) bool {
	_, err := os.Lstat(r.folder(id))
	return err == nil
}

// Store stores the result of a command, and removes results that are older than keepResults.
func (r Results) Store(id string, result job.Result) error {
	if err := r.Expect(id); err != nil {
		return err
	}
	r.prune(time.Now().Add(-keepResults))
	return job.Write(r.folder(id), result)
}

// prune removes the results from before a time.
func (r Results) prune(before time.Time) {
	all, err := os.ReadDir(r.dir)
	if err != nil {
		return
	}
	for _, entry := range all {
		info, err := entry.Info()
		if err == nil && info.ModTime().Before(before) {
			_ = r.Remove(entry.Name()) // it is removed the next time
		}
	}
}

// Missing reports whether an error of Read means that there is no result.
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
