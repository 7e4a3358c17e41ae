package fnhttp

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A long body from a file is sent with its length, since some servers require one.
func TestLongBodies(t *testing.T) {
	t.Parallel()
	const skipped, size = 100, maxBuffered + 5
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
		"of unknown length":                 {io.LimitReader(endless{}, size), http.Header{}, ""},
		"a length that was given":           {f, http.Header{"Content-Length": {"7"}}, "7"},
		"short":                             {strings.NewReader("short"), http.Header{}, ""},
	} {
		if _, err := f.Seek(skipped, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b, err := ReadBody(t.Context(), c.in)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := b.Call(c.header)
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || name != "short" && n != size {
			t.Errorf("%s: got %d bytes, %v; want %d", name, n, err, size)
		}
		if got := r.Header.Get("Content-Length"); got != c.want {
			t.Errorf("%s: Content-Length %q, want %q", name, got, c.want)
		}
		if c.header.Get("Content-Length") != "" && c.want != "7" {
			t.Errorf("%s: the caller's header has the length %s, want it unchanged", name, c.header.Get("Content-Length"))
		}
	}
}

// endless is a reader that returns zeros without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
