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

	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// secretSetting is what instances of another engine show to the token daemon.
const secretSetting = "GFAAS_SECRET"

// envFile is a file of settings as Compose reads them and a shell can: NAME=VALUE.
type envFile struct {
	path  string
	lines []string
}

// plainValue needs no quotes in a shell.
var plainValue = regexp.MustCompile(`^[A-Za-z0-9_/.:,=+-]*$`)

// maxEnvFile is the largest file of settings, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads a file of settings; one that is not there is empty.
func readEnvFile(path string) (envFile, error) {
	f := envFile{path: path}
	// Looked at first: a device or a pipe may have no end, and keeps nothing.
	there, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case err != nil:
		return f, err
	case !there.Mode().IsRegular():
		return f, fmt.Errorf("%s is not a regular file, expected one to keep settings in", path)
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
		if value, ours := strings.CutPrefix(line, secretSetting+"="); ours && !plainValue.MatchString(value) {
			return f, fmt.Errorf("%s:%d: %s: expected letters and digits without quotes", path, i+1, secretSetting)
		}
	}
	return f, nil
}

// get is the value of a setting that needs no quotes.
func (f envFile) get(name string) (value string) {
	for _, line := range f.lines {
		if v, found := strings.CutPrefix(line, name+"="); found {
			value = v // the last counts
		}
	}
	return value
}

// write puts settings in the place of those of their names, and keeps all other lines.
// Nobody else can read the file.
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
				return fmt.Errorf("%s: %s %q can be in no file of settings: it has a quote or a line's end", f.path, name, value)
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
