package modeltest

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	modeld "github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	port "github.com/gfaas/gfaas/pkg/gpu/device"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// storer is a running model_store, in C or in Python.
type storer struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
}

// startStorer starts a client that stores models, below a command such as gfaas run if one is given.
func startStorer(t *testing.T, language string, env []string, below ...string) *storer {
	t.Helper()
	args := []string{filepath.Join(build, "check/model_store")}
	if language == python {
		args = []string{"python3", "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", filepath.Join(build, "check/model_store.py")}
		env = append(env, "PYTHONPATH="+filepath.Join(build, "lib/python"), "PYTHONDONTWRITEBYTECODE=1")
	}
	args = append(below, args...)
	s := &storer{t: t, cmd: exec.Command(args[0], args[1:]...)}
	s.cmd.Env, s.cmd.Stderr, s.cmd.WaitDelay = env, os.Stderr, patience
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		s.in, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.answers = bufio.NewReader(out)
	t.Cleanup(func() { s.kill() })
	return s
}

func (s *storer) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// do passes a line to the client, and checks that its answer, followed by a space, begins with a text.
func (s *storer) do(line, want string) string {
	s.t.Helper()
	s.send(line)
	return s.expect(line, want)
}

func (s *storer) send(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// expect checks the answer to a line.
func (s *storer) expect(line, want string) string {
	s.t.Helper()
	got, err := s.answers.ReadString('\n')
	if err != nil {
		s.t.Fatalf("%s: the client ended, %v; want %s", line, err, want)
	}
	got = strings.TrimSuffix(got, "\n")
	if !strings.HasPrefix(got+" ", want) {
		s.t.Errorf("%s: got %s, want %s", line, got, want)
	}
	return got
}

// ok passes lines to the client that must succeed.
func (s *storer) ok(lines ...string) {
	s.t.Helper()
	for _, line := range lines {
		s.do(line, "0 ")
	}
}

// TestStoreRoundTrip stores models from all kinds of memory with each client, and opens them in other
// processes with each client.
func TestStoreRoundTrip(t *testing.T) {
	env, _ := emptyDaemon(t)
	both(t, func(t *testing.T, language string) {
		name := "round/" + language
		s := startStorer(t, language, env)
		s.ok(`with form"at p\t`, "store "+name+` b.weight F32 2,3 a"\ä BF16 3 scalar I64 - empty F16 0,5 last U8 5`)
		if got := client(t, c, env, "show", name); !strings.HasPrefix(got, "6 ") {
			t.Errorf("open a model before its commit: got %s, want the code 6", got)
		}
		s.do("commit", `9 cannot commit model `+name+`: tensor b.weight was not written`)
		s.ok("put b.weight 0102030405060708090a0b0c0d0e0f101112131415161718", `gpu a"\ä 212223242526`, "write scalar 3132333435363738", "touch")
		s.do("commit", "9 cannot commit model "+name+": tensor last was not written")
		s.ok("put last 4142434445", "put last 4142434446", "put empty", "commit")
		const content = `b.weight 0102030405060708090a0b0c0d0e0f101112131415161718; a"\ä 212223242526; scalar 3132333435363738; empty ; last 4142434446; `
		if got := s.do("show", "b.weight"); got != content {
			t.Errorf("tensors after the commit: got %s, want %s", got, content)
		}
		const shown = `b.weight F32 [2,3] 0 24 0102030405060708090a0b0c0d0e0f101112131415161718
a"\ä BF16 [3] 0 6 212223242526
scalar I64 [] 0 8 3132333435363738
empty F16 [0,5] 0 0 
last U8 [5] 0 5 4142434446
`
		if got := client(t, c, env, "show", name); got != "0  5\n"+shown {
			t.Errorf("C: the model in another process: got %s, want %s", got, shown)
		}
		if got := client(t, python, env, "show", name); got != "0 None 5\n"+shown+`metadata {'form"at': 'p\\t'}`+"\n" {
			t.Errorf("Python: the model in another process: got %s, want %s", got, shown)
		}
		s.ok("sealed")
		file := filepath.Join(t.TempDir(), "saved.safetensors")
		tool(t, env, "gfaas-modeld", "get", name, file, "-q")
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "\x31\x32\x33\x34\x35\x36\x37\x38") {
			t.Errorf("file of the stored model: got %q, %v; want the bytes of its tensors", text, err)
		}
	})
}

// TestStoreErrors covers the refusals of the daemon and of the library, and that no descriptor stays open.
func TestStoreErrors(t *testing.T) {
	env, _ := emptyDaemon(t)
	both(t, func(t *testing.T, language string) {
		s := startStorer(t, language, env)
		s.ok("store m a U8 4", "close") // opens the driver
		before := s.do("descriptors", "")
		for line, want := range map[string]string{
			"store .m a U8 4":                         "9 invalid model name",
			"store m a U9 4":                          "9 cannot store tensor a: unknown dtype",
			"store m a U8 4,-1":                       "9 cannot store tensor a: its shape",
			"store m a F32 4611686018427387904,4":     "9 cannot store tensor a: its shape",
			"store m a F32 1099511627776,1024":        "9 size",
			"store m a F32 16384,1025":                "5 model m needs",
			"store m __metadata__ U8 1":               "9 manifest",
			"store m a U8 9000000000000000000 b U8 1": "9 size",
		} {
			s.do(line, want)
		}
		if language == c { // in Python, a dict has no duplicate keys and no missing values
			s.do("store m a U8 4 a U8 4", "9 manifest")
			s.ok("with key")
			s.do("store m a U8 4", "9 metadata key has no value")
			s.ok("reserved")
			s.do("store m a U8 4", "9 gfaas_model_store: a reserved field")
		}
		s.ok("store other a F32 16384,512", "close")
		full := startStorer(t, language, env)
		full.ok("store full a F32 16384,600")
		s.do("store m a F32 16384,600", "6 ")
		s.ok("wait -1")
		s.do("store m a F32 16384,600", "9 ")
		s.ok("wait 3600000")
		s.send("store m a F32 16384,600")
		eventually(t, "a store waits for room", func() bool {
			return strings.Contains(tool(t, env, "gfaas-modeld", "ls", "-o", "csv"), "\nm,")
		})
		full.kill()
		s.expect("store that waited for room", "0 ")
		s.ok("store m a U8 4 b U8 4", "put a 01020304")
		s.do("put c 01", "1 model m has no tensor c")
		s.do("put b 01", "9 tensor b")
		s.do("write c 01", "1 model m has no tensor c")
		s.ok("put b 01020304", "commit")
		for _, line := range []string{"put a 01020304", "write a 01020304", "touch", "commit"} {
			s.do(line, "9 ")
		}
		s.ok("close")
		if after := s.do("descriptors", ""); after != before {
			t.Errorf("descriptors after all stores: got %s, want %s as before", after, before)
		}
		// The connection is closed, and a socket of the program has its number.
		s.ok("store m a U8 1", "replace")
		s.do("put a 01", "11 the connection to gfaas-modeld that stores model m was closed")
		s.do("commit", "9 ")
		s.ok("untouched", "close")
	})
}

// TestInterruptedStores checks that a model whose store ends without a commit never becomes visible, and that
// its memory is freed.
func TestInterruptedStores(t *testing.T) {
	env, _ := emptyDaemon(t)
	both(t, func(t *testing.T, language string) {
		free := func(how string) {
			t.Helper()
			eventually(t, "the daemon has freed a store after "+how, func() bool {
				return strings.Count(tool(t, env, "gfaas-modeld", "ls", "-o", "csv"), "\n") == 1
			})
			if got := client(t, c, env, "show", "m"); !strings.HasPrefix(got, "1 ") {
				t.Errorf("open a model after %s: got %s, want the code 1", how, got)
			}
		}
		s := startStorer(t, language, env)
		s.ok("store m a U8 4 b U8 4", "put a 01020304", "close")
		free("a close")
		s.ok("store m a U8 4", "put a 01020304")
		s.kill()
		free("the end of its process")
		s = startStorer(t, language, env)
		s.ok("store m a U8 4", "fork a", "put a 01020304") // the child's close does not end it
		if language == python {
			s.ok("close", "interrupted m", "sources m", "store m a U8 4", "put a 01020304")
		}
		s.ok("commit", "close")
		tool(t, env, "gfaas-modeld", "rm", "m")
		free("rm")
	})
}

// TestStoresOfOneName checks that of two stores with the same name, the last commit determines the model.
func TestStoresOfOneName(t *testing.T) {
	env, _ := emptyDaemon(t)
	first, second := startStorer(t, c, env), startStorer(t, python, env)
	first.ok("store m a U8 1", "put a 01")
	second.ok("store m a U8 2", "put a 0202", "commit")
	if got := client(t, c, env, "show", "m"); !strings.Contains(got, "a U8 [2] 0 2 0202\n") {
		t.Errorf("model after the first commit: got %s, want the bytes 0202", got)
	}
	first.ok("commit")
	if got := client(t, c, env, "show", "m"); !strings.Contains(got, "a U8 [1] 0 1 01\n") {
		t.Errorf("model after the second commit: got %s, want the byte 01", got)
	}
	second.do("show", "a 0202;") // it keeps the earlier generation
	second.ok("close")
	first.ok("close", "store m a U8 1", "put a 03", "abandon")
	if got := client(t, c, env, "show", "m"); !strings.Contains(got, "a U8 [1] 0 1 03\n") {
		t.Errorf("model that no process has open: got %s, want the byte 03", got)
	}
	if got := tool(t, env, "gfaas-modeld", "ls"); !strings.Contains(got, " 0     3\n") {
		t.Errorf("models: got %s, want m without holders, in generation 3", got)
	}
}

// TestPublicStore checks that another tenant can use a public store only.
func TestPublicStore(t *testing.T) {
	env, _ := emptyDaemon(t, "--tenant", "blue", "--tenant", "green")
	of := func(tenant string) []string {
		i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "GFAAS_RUN_DIR=") })
		socket := filepath.Join(strings.TrimPrefix(env[i], "GFAAS_RUN_DIR="), "model-"+tenant+".sock")
		awaitSocket(t, socket)
		return append(slices.Clone(env), "GFAAS_MODEL_SOCKET="+socket)
	}
	blue, green := of("blue"), of("green")
	both(t, func(t *testing.T, language string) {
		s := startStorer(t, language, blue)
		s.ok("everyone", "store public a U8 1", "put a 01", "commit", "store private a U8 1", "put a 02", "commit")
		for name, want := range map[string]string{"public": "0 ", "private": "1 "} {
			if got := client(t, c, green, "show", name); !strings.HasPrefix(got, want) {
				t.Errorf("open the %s model as another tenant: got %s, want the code %s", name, got, want)
			}
		}
	})
}

// TestThreadsPut checks that threads can put tensors at the same time.
func TestThreadsPut(t *testing.T) {
	env, _ := emptyDaemon(t)
	both(t, func(t *testing.T, language string) {
		s := startStorer(t, language, env)
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		s.ok("other", "store threads "+strings.Join(names, " U8 1048576 ")+" U8 1048576", "threads 7 "+strings.Join(names, " "), "commit")
		got := s.do("show", "a 07070707")
		if n := strings.Count(got, strings.Repeat("07", 32)+"; "); n != len(names) {
			t.Errorf("tensors with the bytes of the threads: got %d of %d in %s", n, len(names), got)
		}
	})
}

// TestStoreInSlice checks that a store counts against the memory limit of the client's slice until the commit.
func TestStoreInSlice(t *testing.T) {
	env, _ := emptyDaemon(t)
	both(t, func(t *testing.T, language string) {
		s := startStorer(t, language, env, filepath.Join(build, "bin/gfaas"), "run", "-q", "--gpu", "sim", "--mem", "8MiB", "--")
		s.do("store m a U8 9000000", "13 ")
		const five = " a U8 1048576 b U8 1048576 c U8 1048576 d U8 1048576 e U8 1048576"
		s.ok("store m" + five)
		s.ok("threads 7 a b c d e", "commit", "store n"+five, "close")
	})
}

// TestDaemonDiesDuringStore checks that a store ends with the daemon, and that a committed model stays with
// its holders only.
func TestDaemonDiesDuringStore(t *testing.T) {
	env, daemon := emptyDaemon(t)
	clients := map[string]*storer{}
	for _, language := range languages {
		clients[language] = startStorer(t, language, env)
		clients[language].ok("store held a U8 1", "put a 07", "commit", "store m a U8 4 b U8 4", "put a 01020304")
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	for _, s := range clients {
		s.do("put b 01020304", "11 ")
		s.do("touch", "11 ")
		s.do("write b 01020304", "0 ")
		s.do("commit", "11 ")
		s.do("commit", "9 ")
		s.do("store m a U8 4", "11 ")
	}
}

// nothing is a Catalogue that forgets everything.
type nothing struct{}

func (nothing) Models(context.Context) ([]wire.Record, error)     { return nil, nil }
func (nothing) PutModel(context.Context, wire.Record) error       { return nil }
func (nothing) DeleteModel(context.Context, string, string) error { return nil }

// shared is the GPU of all tests, which a daemon must not close.
type shared struct{ port.Device }

func (shared) Close() error { return nil }

// TestSilentStore checks that the library reports the end of a store from which the daemon heard nothing for
// too long: in the test for 50 ms.
func TestSilentStore(t *testing.T) {
	dir, err := os.MkdirTemp("", "gm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d, err := modeld.Open(modeld.Config{
		Socket: filepath.Join(dir, "model.sock"), Capacity: 64 * gpu.MiB, StorePause: 50 * time.Millisecond, GPU: shared{device}, Catalogue: nothing{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	env := environ(filepath.Join(dir, "model.sock"))
	both(t, func(t *testing.T, language string) {
		s := startStorer(t, language, env)
		for _, line := range []string{"touch", "put a 01", "commit"} {
			s.ok("store m a U8 1", "write a 01")
			eventually(t, "the store has ended", func() bool { return strings.HasPrefix(client(t, c, env, "show", "m"), "1 ") })
			s.do(line, "1 the store of model m has ended, because this connection sent no request for 50ms")
			s.do("commit", map[bool]string{true: "9 ", false: "1 "}[line == "commit"])
		}
	})
}
