package owndir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"own":             {func(p string) error { return os.Mkdir(p, 0o755) }, ""},
		"writable":        {func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o777)) }, "mode 0777"},
		"group":           {func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o770)) }, "mode 0770"},
		"link":            {func(p string) error { return os.Symlink(t.TempDir(), p) }, "symbolic link"},
		"file":            {func(p string) error { return os.WriteFile(p, nil, 0o600) }, "not a folder"},
		"another user's":  {func(p string) error { return errors.Join(os.Mkdir(p, 0o755), os.Chown(p, 64999, -1)) }, "is owned by uid 64999"},
		"nobody's so far": {func(string) error { return nil }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" && os.Geteuid() != 0 {
				t.Skip("SKIPPED: only root can make another user's folder")
			}
			path := filepath.Join(t.TempDir(), "dir")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{path, path + "/"} {
				root, err := Open(path)
				if err == nil {
					root.Close()
				}
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: %v, want %q", path, err, c.want)
				}
				var refused *Error
				if errors.As(err, &refused) != errors.Is(err, fs.ErrPermission) {
					t.Errorf("%s: %v is one of *Error and fs.ErrPermission only", path, err)
				}
			}
		})
	}
}

func TestEnsure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := Ensure(path); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}
