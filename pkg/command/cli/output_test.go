package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOutFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"link": "file", "far": at("link"), "loop": "loop"} {
		if err := os.Symlink(target, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	env := &Env{OutFile: at("loop")}
	if err := env.Write([]byte("x")); err == nil {
		t.Error("write to a loop of symbolic links: got no error, want one")
	}
	env.OutFile = at("far")
	if err := env.Write([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(at("file")); err != nil || string(text) != "text" {
		t.Errorf("the file has %q, %v; want text", text, err)
	}
}

// TestOutFileNamed checks that the error about a file that cannot be written contains its name instead of the temporary
// file's, and that no temporary file remains.
func TestOutFileNamed(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none", "f"), dir} {
		env := &Env{OutFile: path}
		err := env.Write([]byte("x"))
		if err == nil || !strings.Contains(err.Error(), " "+path+": ") {
			t.Errorf("write %s: %v, want its name", path, err)
		}
	}
	if _, err := (&Env{}).Create(filepath.Join(dir, "none", "f")); err == nil || !strings.Contains(err.Error(), "/none/f: ") {
		t.Errorf("create: %v, want its name", err)
	}
	if remaining, _ := os.ReadDir(dir); len(remaining) > 0 {
		t.Errorf("files after the output: got %v, want none besides it", remaining)
	}
}

// TestCreateForStream checks that output for a stream is buffered in a file that is removed however the program ends.
func TestCreateForStream(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var out bytes.Buffer
	p, err := (&Env{Out: &out}).Create("-")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Cleanup()
	if _, err := p.WriteString("text"); err != nil {
		t.Fatal(err)
	}
	if remaining, err := os.ReadDir(dir); err != nil || len(remaining) > 0 || p.Remains {
		t.Errorf("files of the buffer: got %v, %v, and Remains %v; want none and false", remaining, err, p.Remains)
	}
	if err := p.Commit(); err != nil || out.String() != "text" {
		t.Errorf("commit: got %q, %v; want %q", &out, err, "text")
	}
}

// TestCheckOutput checks that two outputs cannot have the same file, even under different names.
func TestCheckOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("there", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("there", "link"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		own, second string
		ok          bool
	}{
		{"", "", true}, {"", "f", true}, {"", "-", false}, {"-", "-", false}, {"f", "-", true}, {"f", "", true}, {"f", "g", true},
		{"f", "f", false}, {"f", "./f", false}, {"there", "link", false}, {"link", "there", false}, {"there", "f", true},
		{"/dev/null", "/dev/null", true},
	} {
		if err := (&Env{OutFile: c.own}).CheckOutput("trace-out", c.second); (err == nil) != c.ok {
			t.Errorf("--out-file %q --trace-out %q: got the error %v, want none: %v", c.own, c.second, err, c.ok)
		}
	}
}
