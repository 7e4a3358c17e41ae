package gfaas

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/adapter/containercli"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// envFile is a file of settings in the form NAME=VALUE, which Compose and shells can read.
type envFile struct {
	path  string
	lines []string
}

// plainValue matches values that need no quotes in a shell.
var plainValue = regexp.MustCompile(`^[A-Za-z0-9_/.:,=+-]*$`)

// maxEnvFile is the largest file of settings, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads a file of settings. It returns an empty envFile if the file does not exist.
func readEnvFile(path string) (envFile, error) {
	f := envFile{path: path}
	// Check the type first: a device or a pipe may have no end, and does not store data.
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case err != nil:
		return f, err
	case !info.Mode().IsRegular():
		return f, fmt.Errorf("%s is not a regular file: cannot store settings in it", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer file.Close()
	text, err := textfile.ReadAll(file, &textfile.Checker{Name: path, Is: "settings", Total: maxEnvFile})
	if err != nil || len(text) == 0 {
		return f, err
	}
	f.lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, line := range f.lines {
		if value, ours := strings.CutPrefix(line, containercli.Secret+"="); ours && !plainValue.MatchString(value) {
			return f, fmt.Errorf("%s:%d: invalid value of %s: expected letters and digits without quotes", path, i+1, containercli.Secret)
		}
	}
	return f, nil
}

// get returns the value of a setting. It does not remove quotes.
func (f envFile) get(name string) (value string) {
	for _, line := range f.lines {
		if v, found := strings.CutPrefix(line, name+"="); found {
			value = v // the last line takes precedence
		}
	}
	return value
}

// write replaces the lines of the given settings and preserves all other lines. Only the user can
// read the file.
func (f envFile) write(settings map[string]string) error {
	lines := slices.DeleteFunc(slices.Clone(f.lines), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		_, ours := settings[name]
		return ours
	})
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		value := settings[name]
		if !plainValue.MatchString(value) {
			if strings.ContainsAny(value, "'\n") {
				return fmt.Errorf("%s: cannot store %s=%q in a file of settings: the value contains a single quote or a line break", f.path, name, value)
			}
			value = "'" + value + "'"
		}
		lines = append(lines, name+"="+value)
	}
	target, replace := outfile.Target(f.path)
	text := []byte(strings.Join(lines, "\n") + "\n")
	if !replace {
		return os.WriteFile(target, text, 0o600)
	}
	return outfile.WithPath(f.path, renameio.WriteFile(target, text, 0o600))
}
