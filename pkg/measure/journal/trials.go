package journal

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Trials is a measure.TrialWriter that appends trials for the goodput to a CSV file. It
// creates the file, or replaces an older one, with the first trial.
type Trials struct {
	path      string
	kept      []byte // the whole lines of an older file that are kept
	rewritten bool   // lines of the older file are removed

	mu   sync.Mutex
	file *os.File // nil until the first trial
}

// CreateTrials returns the writer of a new file. It fails if the file cannot be
// created.
func CreateTrials(path string) (*Trials, error) {
	return &Trials{path: path}, outfile.CheckCreatable(path)
}

// ResumeTrials returns a writer that continues the file of an earlier run. From that
// file it removes the trials of the points in remeasured on the GPU model, which are about
// to be repeated. It fails if the file has other content; the error is a
// *NotRegularError if it cannot be read back.
func ResumeTrials(path string, remeasured map[measure.Point]bool, gpu string) (*Trials, error) {
	l, err := CreateTrials(path)
	if err != nil {
		return nil, err
	}
	data, err := readBack(path)
	l.kept = wholeLines(data)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(l.kept) == 0 {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	trials, err := profile.ReadTrials(bytes.NewReader(l.kept), path)
	lines := bytes.SplitAfter(l.kept, []byte("\n"))
	for _, t := range trials {
		if t.GPU == gpu && remeasured[measure.Point{Function: t.Function, Config: t.Config}] {
			lines[t.Line-1], l.rewritten = nil, true
		}
	}
	l.kept = bytes.Join(lines, nil)
	return l, err
}

// Append writes a trial.
func (l *Trials) Append(t profile.Trial) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	if l.file == nil {
		empty, err := l.open()
		if err != nil {
			return err
		}
		if empty {
			_ = w.Write(profile.TrialHeader())
		}
	}
	_ = w.Write(t.Record())
	w.Flush() // to memory
	if _, err := l.file.Write(text.Bytes()); err != nil {
		return fmt.Errorf("write a trial: %w", err)
	}
	return nil
}

// open opens the file after the lines that are kept. It reports whether there are none.
func (l *Trials) open() (empty bool, err error) {
	// If the file has been removed or shortened since it was read, it is written again.
	info, err := os.Stat(l.path)
	gone := len(l.kept) > 0 && (errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() < int64(len(l.kept)))
	if l.rewritten || gone {
		path, _ := outfile.Target(l.path)
		if err := renameio.WriteFile(path, l.kept, 0o644, renameio.WithExistingPermissions()); err != nil {
			return false, err
		}
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return false, err
	}
	size := int64(len(l.kept))
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		if err := f.Truncate(size); err != nil {
			return false, errors.Join(err, f.Close())
		}
		if _, err := f.Seek(size, io.SeekStart); err != nil {
			return false, errors.Join(err, f.Close())
		}
	}
	l.file = f
	return size == 0, nil
}

// Close closes the file.
func (l *Trials) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
