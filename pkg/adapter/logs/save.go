package logs

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// Save writes lines as a complete log, replacing a log in the folder. Without lines, it
// creates no log. If lines yields an error, Save returns it and keeps the lines before it.
func Save(dir string, lines ports.LogLines) (err error) {
	if err := Remove(dir); err != nil {
		return err
	}
	var file *os.File
	var out *bufio.Writer
	var failed error
	for line, err := range lines {
		if err != nil {
			failed = err
			break
		}
		if file == nil {
			if file, err = create(dir); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, file.Close()) }()
			out = bufio.NewWriter(file)
		}
		tag := byte(whole)
		if line.Partial {
			tag = partial
		}
		if _, err := out.Write(appendLine(nil, line.Time, []byte(line.Text), tag)); err != nil {
			return err
		}
	}
	if out != nil {
		failed = errors.Join(failed, out.Flush())
	}
	return failed
}

// create creates a log's folder and its current file.
func create(dir string) (*os.File, error) {
	for _, each := range []string{filepath.Dir(dir), dir} {
		if err := owndir.Ensure(each); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	root, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile(currentFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
}
