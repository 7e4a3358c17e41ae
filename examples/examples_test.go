// Package examples_test runs the built examples on the simulated driver, as ordinary
// programs.
package examples_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// built returns the path of a file that make builds. Without the file, the test is
// skipped, or fails if CI is set.
func built(t testing.TB, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{"..", "build"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: run make first", err)
		}
		t.Skipf("%v: run make first", err)
	}
	return path
}

// function is a running saxpy.
type function struct {
	t   *testing.T
	url string
	cmd *exec.Cmd
	out *bytes.Buffer
}

// reserve returns a port that no other process gets until the test ends. A socket is
// bound to it but does not listen, so the program can. The kernel may choose a port that is
// bound with SO_REUSEADDR again, but it chooses none below 32768.
func reserve(t testing.TB) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		port := 20000 + (os.Getpid()+int(reserved.Add(1)))%10000
		if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}); err == nil {
			return port
		}
	}
	t.Fatal(err)
	return 0
}

var reserved atomic.Int32 // calls of reserve

// start starts saxpy with small kernels on its own device.
func start(t *testing.T, settings ...string) *function {
	t.Helper()
	port := reserve(t)
	f := &function{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port), out: new(bytes.Buffer)}
	f.cmd = exec.Command(built(t, "examples", "saxpy", "saxpy"))
	f.cmd.Stdout, f.cmd.Stderr = f.out, f.out
	f.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(built(t, "lib", "sim", "libcuda.so.1")),
		"GFAAS_SIM_DIR="+t.TempDir(), fmt.Sprintf("PORT=%d", port), "SAXPY_BLOCKS=1")
	f.cmd.Env = append(f.cmd.Env, settings...)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
		if t.Failed() {
			t.Logf("it printed:\n%s", f.out)
		}
	})
	deadline := time.Now().Add(time.Minute)
	for {
		response, err := http.Get(f.url + "/healthz")
		if err == nil {
			_ = response.Body.Close()
			return f
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// post returns the status and the body of an invocation.
func (f *function) post(body io.Reader, header ...string) (int, string) {
	f.t.Helper()
	request, err := http.NewRequest(http.MethodPost, f.url, body)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestAnswers(t *testing.T) {
	f := start(t)
	const chunks = "in chunks"
	for _, c := range []struct {
		name, body string
		header     []string
		status     int
		want       string
	}{
		{"nothing", "", nil, 200, `{"n":4096,"a":2,"batch":1,"launches":5,"sum":1982400}`},
		{"object", ` { "n" : 5, "a": 1, "note": 7 } `, nil, 200, `{"n":5,"a":1,"batch":1,"launches":5,"sum":60}`},
		{"batch", `{"n": 5, "a": 1}`, []string{"X-Gfaas-Batch", "3"}, 200, `{"n":5,"a":1,"batch":3,"launches":5,"sum":180}`},
		{chunks, `{"n": 5, "a": 1}`, nil, 200, `"sum":60}`},
		{"no object", `[5]`, nil, 400, "expected an object"},
		{"text", `{"n": "5"}`, nil, 400, "expected an object"},
		{"not closed", `{"n": 5`, nil, 400, "expected an object"},
		{"no elements", `{"n": 0}`, nil, 400, "expected a whole n"},
		{"a fraction", `{"n": 1.5}`, nil, 400, "expected a whole n"},
		{"too many", `{"n": 16777217}`, nil, 400, "expected a whole n"},
		{"infinite", `{"a": 1e99}`, nil, 400, "a finite a"},
		{"no batch", `{}`, []string{"X-Gfaas-Batch", "x"}, 400, "X-Gfaas-Batch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sent io.Reader = strings.NewReader(c.body)
			if c.name == chunks { // a body of unknown length
				sent = io.MultiReader(sent)
			}
			status, body := f.post(sent, c.header...)
			if status != c.status || !strings.Contains(body, c.want) {
				t.Errorf("answer = %d %q, want %d with %q", status, body, c.status, c.want)
			}
		})
	}
}

// TestConcurrentAnswersAreChecked checks that the answers to many concurrent clients
// pass the checker.
func TestConcurrentAnswersAreChecked(t *testing.T) {
	f := start(t, "SAXPY_STREAMS=3")
	var wg sync.WaitGroup
	answers := make([]string, 60)
	for i := range answers {
		wg.Go(func() {
			_, answers[i] = f.post(strings.NewReader(fmt.Sprintf(`{"n": %d, "a": 0.%d}`, 97*i+1, i)))
		})
	}
	wg.Wait()
	check := func(input string, args ...string) error {
		cmd := exec.Command(built(t, "examples", "saxpy", "saxpy-check"), args...)
		cmd.Stdin = strings.NewReader(input)
		return cmd.Run()
	}
	all := strings.Join(answers, "")
	if err := check(all, "60"); err != nil {
		t.Errorf("the checker refuses the answers: %v\n%s", err, all)
	}
	if check(all, "61") == nil || check(strings.Replace(all, `"sum":`, `"sum":1`, 1)) == nil || check(strings.Replace(all, `"sum":`, `"sum":-nan,"x":`, 1)) == nil || check("") == nil {
		t.Error("the checker accepts a missing or a wrong answer")
	}
}

func TestProtocol(t *testing.T) {
	f := start(t)
	address := strings.TrimPrefix(f.url, "http://")
	for _, c := range []struct{ name, request, want string }{
		{"unknown path", "GET /x HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "},
		{"wrong method", "PUT / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "},
		{"no HTTP", "hello\r\n\r\n", "HTTP/1.1 400 "},
		{"bad length", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 400 "},
		{"long body", "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", "HTTP/1.1 413 "},
		{"bad chunk", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "HTTP/1.1 400 "},
		{"other coding", "POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501 "},
		{"two at once", "GET /healthz HTTP/1.1\r\n\r\nGET /y HTTP/1.1\r\n\r\n", "HTTP/1.1 200 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			if _, err := io.WriteString(conn, c.request); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, c.want) {
				t.Errorf("answer begins %q, %v, want %q", line, err, c.want)
			}
		})
	}
}

func TestEndsWhenAsked(t *testing.T) {
	f := start(t)
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want status 0", err)
	}
}
