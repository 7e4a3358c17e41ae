package outfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTargetFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"link": "file", "far": at("link"), "gone": "new", "null": "/dev/null", "out": "/proc/self/fd/1", "loop": "loop"} {
		if err := os.Symlink(target, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]struct {
		target  string
		replace bool
	}{
		"file": {at("file"), true}, "new": {at("new"), true}, "link": {at("file"), true}, "far": {at("file"), true},
		"gone": {at("new"), true}, "null": {"/dev/null", false}, "out": {"/proc/self/fd/1", false},
	} {
		target, replace := Target(at(name))
		if target != want.target || replace != want.replace {
			t.Errorf("%s: %s, %v; want %v", name, target, replace, want)
		}
	}
	for _, path := range []string{"/dev/null", at("loop")} {
		if _, replace := Target(path); replace {
			t.Errorf("%s: may be replaced, want not", path)
		}
	}
}

func TestCheckCreatable(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		"": "", "-": "", "/dev/null": "", filepath.Join(dir, "new"): "",
		dir: " is a folder, expected a file", filepath.Join(dir, "none", "f"): "write " + filepath.Join(dir, "none", "f") + ": ",
	} {
		err := CheckCreatable(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}
