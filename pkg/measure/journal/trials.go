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
	path       string
	resume     bool
	remeasured map[measure.Point]bool // points that are measured again; may be nil
	gpu        string

	mu   sync.Mutex
	file *os.File // nil until the first trial
}

// CreateTrials returns the writer of a new file. It fails if the file cannot be
// created.
func CreateTrials(path string) (*Trials, error) {
	l := &Trials{path: path}
	return l, l.check()
}

// ResumeTrials returns a writer that continues the file of an earlier run. From that
// file it removes the trials of the points in remeasured on the GPU model, which are about
// to be repeated. It fails if the file has other content; the error is a
// *NotRegularError if it cannot be read back.
func ResumeTrials(path string, remeasured map[measure.Point]bool, gpu string) (*Trials, error) {
	l := &Trials{path: path, resume: true, remeasured: remeasured, gpu: gpu}
	return l, l.check()
}

// check returns an error if the file cannot be created or resumed.
func (l *Trials) check() error {
	if err := outfile.CheckCreatable(l.path); err != nil || !l.resume {
		return err
	}
	data, err := readBack(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if whole := wholeLines(data); err == nil && len(whole) > 0 {
		_, err = profile.ReadTrials(bytes.NewReader(whole), l.path)
	}
	return err
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

// open opens the file after its last whole line, or truncates it if it is not resumed.
// It reports whether the file is empty.
func (l *Trials) open() (empty bool, err error) {
	size := int64(0)
	if l.resume {
		if size, err = l.earlier(); err != nil {
			return false, err
		}
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return false, err
	}
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

// earlier returns the size of the part to keep: the whole lines. If an earlier run ended
// while it measured a point that is measured again, earlier first rewrites the file
// without the trials of that point.
func (l *Trials) earlier() (int64, error) {
	data, err := readBack(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	whole := wholeLines(data)
	if len(whole) == 0 {
		return 0, nil
	}
	trials, err := profile.ReadTrials(bytes.NewReader(whole), l.path)
	if err != nil {
		return 0, err
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	dropped := false
	for _, t := range trials {
		if t.GPU == l.gpu && l.remeasured[measure.Point{Function: t.Function, Config: t.Config}] {
			lines[t.Line-1], dropped = nil, true
		}
	}
	if !dropped {
		return int64(len(whole)), nil
	}
	whole = bytes.Join(lines, nil)
	path, _ := outfile.Target(l.path)
	return int64(len(whole)), renameio.WriteFile(path, whole, 0o644, renameio.WithExistingPermissions())
}

// Close closes the file.
func (l *Trials) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
