package profile

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

// trialLog keeps the trials for goodputs in a file, each as soon as it is made. A
// file that there is is replaced by the first, or, when a profile is resumed, gone
// on with: without the trials of configurations that are measured again.
type trialLog struct {
	path   string
	resume bool
	again  map[measure.Point]bool // configurations that are to be measured; may be nil
	gpu    string                 // on this model of GPU

	mu   sync.Mutex
	file *os.File // nil until the first trial
}

// check says what is wrong with the file before anything is measured.
func (l *trialLog) check() error {
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

// wholeLines is what a crash did not tear.
func wholeLines(data []byte) []byte { return data[:bytes.LastIndexByte(data, '\n')+1] }

// Append keeps a trial; no log keeps none.
func (l *trialLog) Append(t profile.Trial) error {
	if l == nil {
		return nil
	}
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
		return fmt.Errorf("keep a trial: %w", err)
	}
	return nil
}

// open opens the file behind its last whole line, if that is kept, and tells
// whether nothing is.
func (l *trialLog) open() (empty bool, err error) {
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

// earlier is how many bytes of the file are kept: its whole lines. Where an earlier
// run was ended while it measured a configuration the file is written anew first,
// without that one's.
func (l *trialLog) earlier() (int64, error) {
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
		if t.GPU == l.gpu && l.again[measure.Point{Function: t.Function, Config: t.Config}] {
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

func (l *trialLog) Close() error {
	if l == nil || l.file == nil {
		return nil
	}
	return l.file.Close()
}
