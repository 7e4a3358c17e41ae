package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func readNamed(r io.Reader, name string) (string, error) {
	text, err := io.ReadAll(r)
	return name + ": " + string(text), err
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("of a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := &Env{In: strings.NewReader("of the input")}
	for arg, want := range map[string]string{path: path + ": of a file", "-": "<stdin>: of the input"} {
		if got, err := Load(env, arg, readNamed); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", arg, got, err, want)
		}
	}
	for _, arg := range []string{dir, filepath.Join(dir, "none")} {
		if got, err := Load(env, arg, readNamed); err == nil || !strings.Contains(err.Error(), arg) {
			t.Errorf("Load(%s): got %q, %v; want an error that names the path", arg, got, err)
		}
	}
}

// TestLoadFunctions checks that the folder for a function's relative paths is the file's, not the working directory.
func TestLoadFunctions(t *testing.T) {
	const text = "name: a\nimage: i\n"
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub/f.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	env := &Env{In: bytes.NewBufferString(text)}
	for path, want := range map[string]string{
		filepath.Join(dir, "sub/f.yaml"): filepath.Join(dir, "sub"), "sub/f.yaml": filepath.Join(dir, "sub"), "-": dir,
	} {
		functions, err := LoadFunctions(env, path)
		if err != nil {
			t.Fatal(err)
		}
		if functions[0].Dir != want {
			t.Errorf("%s: folder %q, want %q", path, functions[0].Dir, want)
		}
	}
	if _, err := LoadFunctions(env, "none.yaml"); err == nil {
		t.Error("LoadFunctions of a missing file: got no error, want one")
	}
}
