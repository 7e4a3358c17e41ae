package modeltest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExample checks that the example function answers. The first instance passes its
// weights to the daemon as a file; the second one has no weights of its own.
func TestExample(t *testing.T) {
	const rows, columns = 300, 50
	file := filepath.Join(t.TempDir(), "linear.safetensors")
	dir := filepath.Join(build, "examples/linear")
	output(t, "python3", filepath.Join(dir, "make_weights.py"), file, fmt.Sprint(rows), fmt.Sprint(columns))
	var mu sync.Mutex
	var loaded *answer
	d := serve(t, func(r request) answer {
		mu.Lock()
		defer mu.Unlock()
		if loaded == nil {
			text, err := io.ReadAll(r.file)
			if err != nil || len(text) < 8 {
				t.Fatal(err)
			}
			a := load(t, text)
			loaded = &a
		}
		return *loaded
	})
	for _, weights := range []string{file, "none"} {
		url := example(t, append(environ(d.path), "WEIGHTS="+weights, "PYTHONPATH="+filepath.Join(build, "lib/python")))
		x := make([]float64, columns)
		for j := range x {
			x[j] = float64(j) / 4
		}
		body, _ := json.Marshal(map[string]any{"x": x})
		var got struct{ Y []float64 }
		if err := json.Unmarshal([]byte(post(t, url, string(body), 200)), &got); err != nil || len(got.Y) != rows {
			t.Fatalf("answer of the function: got %d numbers, %v; want %d", len(got.Y), err, rows)
		}
		for i, y := range got.Y {
			want := float64(i)
			for j := range x {
				want += float64((i+j)%7) * x[j]
			}
			if math.Abs(y-want) > 1e-5*want {
				t.Fatalf("y[%d] is %v, not %v", i, y, want)
			}
		}
		for _, bad := range []string{"", "[]", `{"x":[1]}`, `{"x":"` + strings.Repeat("x", columns) + `"}`, strings.Repeat("[", 9999),
			`{"x":[` + strings.Repeat("1e999,", columns-1) + `0]}`} {
			if text := post(t, url, bad, 400); !strings.Contains(text, `{"error": `) {
				t.Errorf(`%.20s: %s, want a text with "{"error": "`, bad, text)
			}
		}
		post(t, url, string(body), 200)
	}
	if d.held() != 2 {
		t.Errorf("connections of the instances: got %d, want 2, one for each", d.held())
	}
}

// load returns the daemon's answer for a safetensors file. It uses the offsets of the
// file, which is sufficient for two tensors.
func load(t testing.TB, file []byte) answer {
	t.Helper()
	var n uint64
	for i := range 8 {
		n |= uint64(file[i]) << (8 * i)
	}
	var header map[string]struct {
		Dtype   string
		Shape   []int64
		Offsets [2]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	var entries []string
	for name, h := range header {
		shape, _ := json.Marshal(h.Shape)
		entries = append(entries, fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"offset":%d,"bytes":%d}`, name, h.Dtype, shape, h.Offsets[0], h.Offsets[1]-h.Offsets[0]))
	}
	return model(t, `{"tensors":{`+strings.Join(entries, ",")+`},"metadata":{}}`, file[8+n:])
}

// example starts the function and waits until it is ready.
func example(t *testing.T, env []string) (url string) {
	t.Helper()
	port := reserve(t)
	server := exec.Command("python3", "-W", "error", filepath.Join(build, "examples/linear/server.py"))
	server.Env = append(env, fmt.Sprintf("PORT=%d", port), "PYTHONDONTWRITEBYTECODE=1")
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	t.Cleanup(func() { _ = server.Process.Kill(); <-ended })
	url = fmt.Sprintf("http://127.0.0.1:%d/", port)
	eventually(t, "the function answers", func() bool {
		if len(ended) > 0 {
			t.Fatal("the function ended before it answered, want it to run")
		}
		r, err := http.Get(url + "healthz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == 200
	})
	return url
}

// reserve returns a port that no other process gets until the test ends. A socket is
// bound to it but does not listen, so the function can.
func reserve(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port
}

func post(t testing.TB, url, body string, status int) string {
	t.Helper()
	r, err := http.Post(url, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != status {
		t.Errorf("request %.40s: got status %d, %v; want %d: %s", body, r.StatusCode, err, status, text)
	}
	return string(text)
}
