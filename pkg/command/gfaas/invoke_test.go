package gfaas

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A body too long to be kept is sent with its length when it is a file: not
// every server reads one without.
func TestLongBodies(t *testing.T) {
	const skipped, size = 100, maxKept + 5
	f, err := os.Create(filepath.Join(t.TempDir(), "long"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(skipped + size); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in     io.Reader
		header http.Header
		want   string
	}{
		"a file that something was read of": {f, http.Header{"X": {"y"}}, "16777221"},
		"of unknown length":                 {io.LimitReader(zeros{}, size), http.Header{}, ""},
		"a length that was given":           {f, http.Header{"Content-Length": {"7"}}, "7"},
		"short":                             {strings.NewReader("short"), http.Header{}, ""},
	} {
		if _, err := f.Seek(skipped, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b, err := readBody(t.Context(), c.in)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := b.call(c.header)
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || name != "short" && n != size {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if got := r.Header.Get("Content-Length"); got != c.want {
			t.Errorf("%s: Content-Length %q, want %q", name, got, c.want)
		}
		if c.header.Get("Content-Length") != "" && c.want != "7" {
			t.Errorf("%s: the caller's header was changed", name)
		}
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
