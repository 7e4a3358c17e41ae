// Package dockertest makes images for tests, because engines on test machines cannot pull any.
package dockertest

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// Import creates an image from local files. The keys of files are paths in the image. The image also has the link
// /bin/link to /probe, for a test of entry points that are links. changes are instructions of a Dockerfile.
func Import(t *testing.T, engine *client.Client, name string, files map[string]string, changes ...string) {
	t.Helper()
	var root bytes.Buffer
	archive := tar.NewWriter(&root)
	for target, source := range files {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := archive.WriteHeader(&tar.Header{Name: target, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/link", Linkname: "../probe", Mode: 0o777}); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	stream, err := engine.ImageImport(t.Context(), image.ImportSource{Source: &root, SourceName: "-"}, name, image.ImportOptions{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(stream)
	_ = stream.Close()
	if err != nil || bytes.Contains(answer, []byte(`"error"`)) {
		t.Fatalf("import image %s: %s, %v", name, answer, err)
	}
}

var sharedObject = regexp.MustCompile(`(/\S+) \(0x`)

// Probe maps the path /probe in an image to a program, and further paths to the libraries of the program and of the
// given ones.
func Probe(t *testing.T, program string, libraries ...string) map[string]string {
	t.Helper()
	files := map[string]string{"probe": program}
	listing, err := exec.Command("ldd", append([]string{program}, libraries...)...).Output()
	if err != nil {
		t.Fatalf("ldd: %v; run make first", err)
	}
	for _, match := range sharedObject.FindAllStringSubmatch(string(listing), -1) {
		files[strings.TrimPrefix(match[1], "/")] = match[1]
	}
	return files
}
