package examples_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// needPython skips a test if there is no Python, or fails it if CI is set.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// edit replaces a text, which must occur exactly once.
func (u *user) edit(file, old, text string) {
	u.t.Helper()
	path := filepath.Join(u.dir, file)
	was, err := os.ReadFile(path)
	if err != nil || strings.Count(string(was), old) != 1 {
		u.t.Fatalf("%v: %q is not once in\n%s", err, old, was)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(was), old, text, 1)), 0o600); err != nil {
		u.t.Fatal(err)
	}
}

// TestNewWithoutServe checks that gfaas new writes an ordinary program, which finds the
// simulated driver like any other driver and runs unchanged in a slice.
func TestNewWithoutServe(t *testing.T) {
	needPython(t)
	u := newUser(t)
	u.env = append(u.env, "PYTHONDONTWRITEBYTECODE=1", "LD_LIBRARY_PATH="+filepath.Dir(built(t, "lib", "sim", "libcuda.so.1")))
	for template, c := range map[string]struct {
		program        []string
		ready, invoked string
		request, want  string
	}{
		"python": {[]string{"python3", "f-python/server.py"}, "/healthz", "/", "request.json", `{"y": [12.0, 24.0, 36.0]}`},
		"c":      {[]string{"f-c/server"}, "/healthz", "/", "request.txt", "2 4 6"},
		"openai": {[]string{"python3", "f-openai/server.py"}, "/v1/models", "/v1/chat/completions", "request.json", `"completion_tokens": 8`},
	} {
		t.Run(template, func(t *testing.T) {
			u.do("gfaas", "new", "f-"+template, "--template", template, "-q")
			if template == "c" {
				if text, err := exec.Command("make", "-C", filepath.Join(u.dir, "f-c")).CombinedOutput(); err != nil {
					t.Fatalf("make: %v\n%s", err, text)
				}
			}
			request, err := os.ReadFile(filepath.Join(u.dir, "f-"+template, c.request))
			if err != nil {
				t.Fatal(err)
			}
			for _, slice := range [][]string{nil, {built(t, "bin", "gfaas"), "run", "-q", "--gpu", "sim", "--sm", "24", "--quota", "0.5", "--"}} {
				url := u.program(t, append(slice, c.program...), "MODEL=f-openai")
				answer(t, url+c.ready, nil, "")
				answer(t, url+c.invoked, request, c.want)
			}
		})
	}
}

// program starts a server, which ends with the test, and returns its address.
func (u *user) program(t *testing.T, argv []string, env ...string) (url string) {
	t.Helper()
	port := reserve(t)
	said := new(bytes.Buffer)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = u.dir, said, said
	if !strings.HasPrefix(argv[0], "/") && strings.Contains(argv[0], "/") {
		cmd.Path = filepath.Join(u.dir, argv[0])
	}
	cmd.Env = append(append(u.env[:len(u.env):len(u.env)], fmt.Sprintf("PORT=%d", port)), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%v printed:\n%s", argv, said)
		}
	})
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// answer requests the URL until there is an answer, which must have status 200 and
// contain the text. It posts the body, if there is one.
func answer(t *testing.T, url string, body []byte, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var response *http.Response
		var err error
		if body == nil {
			response, err = http.Get(url)
		} else {
			response, err = http.Post(url, "application/json", bytes.NewReader(body))
		}
		if err != nil {
			if time.Now().After(end) {
				t.Fatal(err)
			}
			continue
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%s: %d %s, %v, want %q", url, response.StatusCode, text, err, want)
		}
		return
	}
}
