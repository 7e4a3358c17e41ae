package modeltest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// environ returns the environment of a client of the daemon with that socket.
func environ(socket string) []string {
	var env []string
	for _, kv := range os.Environ() {
		key, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(key, "GFAAS_") && !strings.HasPrefix(key, "CUDA_") && !strings.HasPrefix(key, "XDG_") {
			env = append(env, kv)
		}
	}
	return append(env, "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+simDir,
		"GFAAS_SIM_GPU="+os.Getenv("GFAAS_SIM_GPU"), "GFAAS_SIM_NOTED=1", "GFAAS_MODEL_SOCKET="+socket)
}

// command returns a client: the C program that uses the library, or the Python program.
func command(language string, env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(build, "check/model_client"), args...)
	if language == python {
		cmd = exec.Command("python3", append([]string{"-X", "dev", "-W", "error", filepath.Join(build, "check/model_client.py")}, args...)...)
		env = append(env, "PYTHONPATH="+filepath.Join(build, "lib/python"), "PYTHONDONTWRITEBYTECODE=1")
	}
	cmd.Env = env
	cmd.WaitDelay = patience
	return cmd
}

const (
	c      = "C"
	python = "Python"
)

var languages = []string{c, python}

// client runs a client to its end and returns its output. The client must print nothing
// on standard error.
func client(t testing.TB, language string, env []string, args ...string) string {
	t.Helper()
	cmd := command(language, env, args...)
	var errout bytes.Buffer
	cmd.Stderr = &errout
	out, err := cmd.Output()
	if err != nil || errout.Len() > 0 {
		t.Errorf("client %s: got %v with the message %q, want success without a message", args, err, errout.String())
	}
	return string(out)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("timed out after %v waiting for: %s", patience, what)
}

// Tensors of every possible shape, with names that JSON has to escape.
const manifest = `{"tensors":{
 "b.weight":{"dtype":"F32","shape":[2,3],"offset":0,"bytes":24,"more":{"a":[1,-2.5e3,null,true]}},
 "a.weight":{"bytes":4,"offset":256,"shape":[2],"dtype":"BF16"},
 "scalar":{"dtype":"I64","shape":[],"offset":512,"bytes":8},
 "empty":{"dtype":"F16","shape":[0,5],"offset":768,"bytes":0},
 "\u00e4\ud83d\ude00\t\"\\\/":{"dtype":"U8","shape":[3],"offset":1024,"bytes":3},
 "new":{"dtype":"F4","shape":[7],"offset":1024,"bytes":4}
},"metadata":{"format":"pt"},"other":[]}`

func content() []byte {
	b := make([]byte, 1028)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// shown reports whether the client's output is right. The codes are the same in both
// languages, but the texts differ. Python copies the list of tensors, so the list may
// change later and may be nested to any depth.
func shown(language, got, want string) bool {
	if language == python && (strings.Contains(want, "sealed") || strings.Contains(want, "deep")) {
		want = "0 "
	}
	if language == python && !strings.HasPrefix(want, "0 ") && !strings.Contains(want, "because") {
		want, _, _ = strings.Cut(want, " ")
		want += " "
	}
	return strings.HasPrefix(got, want)
}

// asker starts a client that opens models one after the other, and returns a function
// that opens a model and returns the result code and the error.
func asker(t testing.TB, language string, env []string) func(name string) string {
	t.Helper()
	cmd := command(language, env, "serve")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	answers := bufio.NewReader(out)
	return func(name string) string {
		if _, err := io.WriteString(in, name+"\n"); err != nil {
			t.Fatal(err)
		}
		line, err := answers.ReadString('\n')
		if err != nil {
			t.Fatalf("the client is gone: %v", err)
		}
		return strings.TrimSuffix(line, "\n") + " "
	}
}

// askers returns an asker for each language.
func askers(t testing.TB, env []string) map[string]func(string) string {
	asks := map[string]func(string) string{}
	for _, language := range languages {
		asks[language] = asker(t, language, env)
	}
	return asks
}

// both runs a test for each language.
func both(t *testing.T, test func(t *testing.T, language string)) {
	for _, language := range languages {
		t.Run(language, func(t *testing.T) { test(t, language) })
	}
}

func TestOpen(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		d := serve(t, always(model(t, manifest, content())))
		got := client(t, language, environ(d.path), "show", "m")
		want := "0 " + sha + " 6\n" +
			"b.weight F32 [2,3] 0 24 000102030405060708090a0b0c0d0e0f1011121314151617\n" +
			"a.weight BF16 [2] 0 4 00010203\n" +
			"scalar I64 [] 0 8 0001020304050607\n" +
			"empty F16 [0,5] 0 0 \n" +
			"ä😀\t\"\\/ U8 [3] 0 3 000102\n" +
			"new F4 [7] 0 4 00010203\n"
		if language == python {
			want += "metadata {'format': 'pt'}\n"
		}
		if got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		eventually(t, "the client has released its model", func() bool { return d.held() == 0 })
	})
}

// TestSocket checks where the clients look for the daemon.
func TestSocket(t *testing.T) {
	d := serve(t, always(model(t, manifest, content())))
	dir := filepath.Dir(d.path)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "gfaas"), 0o700), os.Symlink(d.path, filepath.Join(dir, "gfaas/model.sock"))); err != nil {
		t.Fatal(err)
	}
	both(t, func(t *testing.T, language string) {
		for _, c := range []struct{ set, want string }{
			{"GFAAS_MODEL_SOCKET=" + d.path, "0 "},
			{"GFAAS_RUN_DIR=" + dir, "0 "},
			{"XDG_RUNTIME_DIR=" + dir, "0 "},
			{"GFAAS_RUN_DIR=" + dir + "/none", "11 no gfaas-modeld at " + dir + "/none/model.sock: No such file or directory"},
			{"GFAAS_MODEL_SOCKET=" + strings.Repeat("/long", 40), "9 the path of gfaas-modeld's socket is longer than 107 bytes"},
			{"GFAAS_MODEL_SOCKET=/dev/null", "11 no gfaas-modeld at /dev/null: Connection refused"},
		} {
			if got := client(t, language, append(environ(""), c.set), "show", "m"); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s: %s, want %s", c.set, got, c.want)
			}
		}
	})
}

// TestDefaultSocket checks that clients find the user's daemon at its default place,
// without variables and in a session. Test folders are mounted over the machine's.
func TestDefaultSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can mount folders over the machine's")
	}
	d := serve(t, always(model(t, manifest, content())))
	for _, c := range []struct {
		at, folder string // mount point, and the folder of the socket in it
		mode       os.FileMode
		want       string
	}{
		{"/run", "user/0/gfaas", 0o700, "0 "},
		{"/run", "gfaas", 0o700, "0 "},
		{"/run", "gfaas", 0o777, "11 no gfaas-modeld at /run/user/0/gfaas/model.sock: No such file or directory"},
		{"/run", "user/1/gfaas", 0o700, "11 no gfaas-modeld at /run/user/0/gfaas/model.sock: No such file or directory"},
	} {
		dir := t.TempDir()
		folder := filepath.Join(dir, c.folder)
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.Chmod(folder, c.mode), os.Symlink(d.path, filepath.Join(folder, "model.sock"))); err != nil {
			t.Fatal(err)
		}
		both(t, func(t *testing.T, language string) {
			for _, session := range []string{"", "/run/user/0", "/run/user/1"} {
				cmd := command(language, append(environ(""), "XDG_RUNTIME_DIR="+session), "show", "m")
				inside := exec.Command("unshare", append([]string{"-m", "sh", "-c", `mount --bind "$0" "$1" && shift && exec "$@"`, dir, c.at, cmd.Path}, cmd.Args[1:]...)...)
				inside.Env = cmd.Env
				got, err := inside.CombinedOutput()
				if err != nil || !strings.HasPrefix(string(got), c.want) {
					t.Errorf("socket in %s (mode %o), XDG_RUNTIME_DIR=%s: %v, %s, want %s", c.folder, c.mode, session, err, got, c.want)
				}
			}
		})
	}
}

// TestRefusals covers valid answers of the daemon that refuse a request, and invalid
// answers.
func TestRefusals(t *testing.T) {
	memory, size := store(t, nil)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ok := fmt.Sprintf(`{"ok":true,"sha256":"%s","gpu":"%s","size":%d}`, sha, device.UUID(), int64(size))
	sealed := memfd(t, manifest, allSeals)
	both := []*os.File{memory, sealed}
	listing := func(m string) answer { return answer{text: ok, files: []*os.File{memory, memfd(t, m, allSeals)}} }
	tensor := func(fields string) answer { return listing(`{"tensors":{"t":{` + fields + `}}}`) }
	refusal := func(code string) answer {
		return answer{text: `{"ok":false,"error":{"code":"` + code + `","message":"because of \u00fc"}}`}
	}
	var next atomic.Pointer[answer]
	d := serve(t, func(request) answer { return *next.Load() })
	asks := askers(t, environ(d.path))
	for _, tc := range []struct {
		what   string
		answer answer
		want   string
	}{
		{"1", refusal("absent"), "1 because of ü"},
		{"2", refusal("invalid-file"), "2 because"},
		{"3", refusal("checksum"), "3 because"},
		{"4", refusal("changed"), "4 because"},
		{"5", refusal("capacity"), "5 because"},
		{"6", refusal("busy"), "6 because"},
		{"7", refusal("gpu-memory"), "7 because"},
		{"8", refusal("denied"), "8 because"},
		{"9", refusal("usage"), "9 because"},
		{"10", refusal("internal"), "10 because"},
		{"13", refusal("slice-memory"), "13 because"},
		{"a code that is new", refusal("tired"), "10 because"},
		{"a refusal with descriptors", answer{text: refusal("busy").text, files: both}, "6 because"},
		{"no reason", answer{text: `{"ok":false}`}, "10 gfaas-modeld refused"},
		{"the end", answer{hang: true}, "11 gfaas-modeld closed the connection"},
		{"no JSON", answer{text: "ok"}, "10 cannot read gfaas-modeld's answer about m, at byte 0: expected an object"},
		{"half of it", answer{text: ok[:40], files: both}, "10 cannot read gfaas-modeld's answer about m, at byte 40: unterminated string"},
		{"too much", answer{text: ok + strings.Repeat(" ", 64<<10), files: both}, "10 gfaas-modeld's answer about m is too long"},
		{"no descriptors", answer{text: ok}, "10 gfaas-modeld's answer about m lacks"},
		{"one descriptor", answer{text: ok, files: both[:1]}, "10 gfaas-modeld's answer about m lacks"},
		{"three descriptors", answer{text: ok, files: append(both[:2:2], null)}, "0 "},
		{"no size", answer{text: `{"ok":true}`, files: both}, "10 gfaas-modeld's answer about m lacks"},
		{"a long name of a GPU", answer{text: `{"ok":true,"gpu":"` + strings.Repeat("x", 99) + `"}`, files: both}, "10 cannot read gfaas-modeld's answer about m, at byte 118: the string is too long"},
		{"another GPU", answer{text: strings.Replace(ok, "GPU-6", "GPU-7", 1), files: both}, "12 the model is on GPU-7"},
		{"no memory of a GPU", answer{text: ok, files: []*os.File{null, sealed}}, "12 cannot import the model's memory: error 1 (CUDA_ERROR_INVALID_VALUE)"},
		{"memory that is smaller", answer{text: strings.Replace(ok, `"size":`, `"size":9`, 1), files: both}, "12 "},
		{"no seals", answer{text: ok, files: []*os.File{memory, memfd(t, manifest, 0)}}, "10 the daemon's list of tensors is not sealed"},
		{"no list", listing(""), "10 the daemon's list of tensors is empty"},
		{"no object", listing("[]"), "10 cannot read the daemon's list of tensors, at byte 0: expected an object"},
		{"two values", listing("{}{}"), "10 cannot read the daemon's list of tensors, at byte 2: expected only one value"},
		{"no tensors", listing("{}"), "0 "},
		{"a list of tensors", listing(`{"tensors":[]}`), "10 cannot read the daemon's list of tensors, at byte 11: expected an object"},
		{"no dtype", tensor(`"shape":[],"offset":0,"bytes":0`), "10 cannot read the daemon's list of tensors, at byte 49: a tensor lacks"},
		{"no shape", tensor(`"dtype":"U8","offset":0,"bytes":0`), "10 cannot read the"},
		{"no offset", tensor(`"dtype":"U8","shape":[],"bytes":1`), "10 cannot read the"},
		{"a dtype that is none", tensor(`"dtype":8,"shape":[],"offset":0,"bytes":1`), "10 cannot read the"},
		{"a negative dimension", tensor(`"dtype":"U8","shape":[-1],"offset":0,"bytes":1`), "10 cannot read the"},
		{"a huge dimension", tensor(`"dtype":"U8","shape":[9223372036854775808],"offset":0,"bytes":1`), "10 cannot read the"},
		{"huge dimensions", tensor(`"dtype":"U8","shape":[4611686018427387904,4],"offset":0,"bytes":0`), "10 cannot read the"},
		{"a fraction", tensor(`"dtype":"U8","shape":[1.5],"offset":0,"bytes":1`), "10 cannot read the"},
		{"bytes of another shape", tensor(`"dtype":"F32","shape":[2],"offset":0,"bytes":7`), "10 cannot read the daemon's list of tensors, at byte 64: the length of a tensor does not match its shape"},
		{"beyond the end", tensor(`"dtype":"U8","shape":[2],"offset":2097151,"bytes":2`), "10 cannot read the daemon's list of tensors, at byte 69: a tensor ends beyond"},
		{"far beyond the end", tensor(`"dtype":"U8","shape":[2],"offset":9223372036854775807,"bytes":2`), "10 cannot read the"},
		{"up to the end", tensor(`"dtype":"U8","shape":[2],"offset":2097150,"bytes":2`), "0 "},
		{"a zero byte in a name", listing(`{"tensors":{"a\u0000b":{}}}`), "10 cannot read the daemon's list of tensors, at byte 20: a zero byte"},
		{"a zero byte elsewhere", listing(`{"tensors":{},"metadata":{"a\u0000b":"c\u0000"}}`), "0 "},
		{"deep", listing(`{"x":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}`), "10 cannot read the daemon's list of tensors, at byte 37: nested too deeply"},
		{"half a pair", listing(`{"tensors":{"\ud800":{"dtype":"U8","shape":[0],"offset":0,"bytes":0}}}`), "0 "},
	} {
		t.Run(tc.what, func(t *testing.T) {
			next.Store(&tc.answer)
			for language, ask := range asks {
				if got := ask("m"); !shown(language, got, tc.want) {
					t.Errorf("%s: %s, want %s", language, got, tc.want)
				}
			}
			client(t, c, environ(d.path), "leaks", "m")
			eventually(t, "the client holds no connection", func() bool { return d.held() == 0 })
		})
	}
}

func TestNames(t *testing.T) {
	d := serve(t, func(r request) answer {
		return answer{text: fmt.Sprintf(`{"ok":false,"error":{"code":"absent","message":%q}}`, r.object["name"])}
	})
	long := strings.Repeat("x", 255)
	asks := askers(t, environ(d.path))
	for name, want := range map[string]string{
		"m": "1 m ", "a/b.c_d-E9": "1 a/b.c_d-E9 ", long: "1 " + long + " ",
		"": "9 ", ".m": "9 invalid model name .m: ", "a b": "9 ", "a\"": "9 ", "ä": "9 ", long + "x": "9 ",
	} {
		for language, ask := range asks {
			if got := ask(name); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q: %s, want %s", language, name, got, want)
			}
		}
	}
}

// TestFile checks that the daemon gets the file itself, not its name.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "weights"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(file, []byte("the weights"), 0o600), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	stored := model(t, manifest, content())
	d := serve(t, func(r request) answer {
		switch {
		case r.object["op"] != "get" || r.object["timeout_ms"] != 0.0:
			t.Errorf("request: got %v, want op get without a timeout", r.object)
			return answer{hang: true}
		case r.object["name"] == "there":
			return stored
		case r.file == nil:
			return answer{text: `{"ok":false,"error":{"code":"absent","message":"no model m"}}`}
		}
		var text []byte
		if info, err := r.file.Stat(); err == nil && info.Mode().IsRegular() {
			text, _ = io.ReadAll(r.file)
		}
		return answer{text: fmt.Sprintf(`{"ok":false,"error":{"code":"invalid-file","message":%q}}`, text)}
	})
	for _, c := range []struct{ name, file, want string }{
		{"m", file, "2 the weights\n"},
		{"m", pipe, "2 "},
		{"m", dir, "2 "},
		{"m", "/dev/zero", "2 "},
		{"m", file + "x", "1 model m is not loaded, and cannot be loaded from " + file + "x: No such file or directory\n"},
		{"there", file + "x", "0 "},
	} {
		for _, language := range languages {
			if got := client(t, language, environ(d.path), "show", c.name, c.file); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s: %s, %s: %s, want %s", language, c.name, c.file, got, c.want)
			}
		}
	}
}

func TestNoDriver(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		d := serve(t, always(model(t, manifest, content())))
		env := append(environ(d.path), "LD_LIBRARY_PATH=")
		if got := client(t, language, env, "show", "m"); !strings.HasPrefix(got, "12 cannot load the CUDA driver") || !strings.Contains(got, "libcuda.so.1") {
			t.Errorf(`client without a driver: got %s, want a text with "12 cannot load the CUDA driver" and a text with "libcuda.so.1"`, got)
		}
	})
}

func TestContext(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		d := serve(t, always(model(t, manifest, content())))
		client(t, language, environ(d.path), "context", "m")
		client(t, language, environ(d.path), "leaks", "m")
	})
}

func TestThreads(t *testing.T) {
	d := serve(t, always(model(t, manifest, content())))
	client(t, c, environ(d.path), "threads", "m", "8", "25")
	eventually(t, "all threads have released the model", func() bool { return d.held() == 0 })
}

// running is a client whose standard input is open.
type running struct {
	*exec.Cmd
	in  io.WriteCloser
	out locked
}

func start(t testing.TB, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{Cmd: cmd}
	cmd.Stdout, cmd.Stderr = &r.out, &r.out
	var err error
	if r.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.in.Close() }) // its child lives until then
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// awaitOutput waits for the client to print a text.
func (r *running) awaitOutput(t testing.TB, what string) {
	t.Helper()
	eventually(t, "the client prints "+what, func() bool {
		return strings.Contains(r.out.String(), what) || strings.Contains(r.out.String(), "Traceback")
	})
}

// ends closes the client's input, and checks that it ends successfully.
func (r *running) ends(t testing.TB) {
	t.Helper()
	r.in.Close()
	if err := r.Wait(); err != nil {
		t.Errorf("end of the client: got %v, want success: %s", err, r.out.String())
	}
}

// TestFork checks that a forked child does not keep its parent's model loaded.
func TestFork(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		d := serve(t, always(model(t, manifest, content())))
		r := start(t, command(language, environ(d.path), "fork", "m"))
		r.awaitOutput(t, "child\n")
		r.awaitOutput(t, "parent\n")
		eventually(t, "the client releases its model while the child lives", func() bool { return d.held() == 0 })
		r.ends(t)
	})
}

// TestForkLoading checks the same for a fork while the daemon has not answered yet.
func TestForkLoading(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		requested, release := make(chan bool, 1), make(chan bool)
		d := serve(t, func(request) answer {
			requested <- true
			<-release
			return answer{text: `{"ok":false,"error":{"code":"absent","message":"no model m"}}`}
		})
		r := start(t, command(language, environ(d.path), "loading", "m"))
		<-requested
		if _, err := io.WriteString(r.in, "\n"); err != nil {
			t.Error(err)
		}
		r.awaitOutput(t, "child\n")
		close(release)
		r.awaitOutput(t, "parent\n")
		eventually(t, "the client closes its connection while the child lives", func() bool { return d.held() == 0 })
		r.ends(t)
	})
}

// TestReused checks that closing a model does not close a file of the program that has
// the descriptor of the former connection.
func TestReused(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		d := serve(t, always(model(t, manifest, content())))
		client(t, language, environ(d.path), "reused", "m")
		eventually(t, "the client has released its model", func() bool { return d.held() == 0 })
	})
}

// TestKilled checks that a killed client releases its model.
func TestKilled(t *testing.T) {
	both(t, func(t *testing.T, language string) {
		d := serve(t, always(model(t, manifest, content())))
		r := start(t, command(language, environ(d.path), "show", "m"))
		r.awaitOutput(t, "new F4")
		if d.held() != 1 {
			t.Errorf("%d connections, want 1", d.held())
		}
		_ = r.Process.Kill()
		_ = r.Wait()
		eventually(t, "the client has released its model", func() bool { return d.held() == 0 })
	})
}

// TestOtherLibrariesKeepModel passes tensors to other Python libraries, and checks how
// long these keep the model.
func TestOtherLibrariesKeepModel(t *testing.T) {
	d := serve(t, always(model(t, manifest, content())))
	r := start(t, command(python, environ(d.path), "takers", "m"))
	r.awaitOutput(t, "held\n")
	if d.held() != 1 {
		t.Errorf("%d connections, while a tensor is held, want 1", d.held())
	}
	if _, err := io.WriteString(r.in, "\n"); err != nil {
		t.Fatal(err)
	}
	r.awaitOutput(t, "gone\n")
	eventually(t, "the client has released its model", func() bool { return d.held() == 0 })
	if _, err := io.WriteString(r.in, "\n"); err != nil {
		t.Fatal(err)
	}
	r.ends(t)
	if got := r.out.String(); got != "held\ngone\n" {
		t.Errorf("output of the client: got %q, want %q", got, "held\ngone\n")
	}
}

// locked is a buffer that one goroutine fills while another reads.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
