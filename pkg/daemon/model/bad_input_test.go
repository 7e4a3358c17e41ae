package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// checkEmpty checks that no model and no GPU memory remain.
func (w *world) checkEmpty() {
	w.t.Helper()
	if all := w.client().list(""); len(all) != 0 || w.gpu.Used() != 0 {
		w.t.Errorf("remaining: got the models %+v and %v of GPU memory, want neither", all, w.gpu.Used())
	}
}

// TestBadFiles checks that invalid files are refused before GPU memory is allocated.
func TestBadFiles(t *testing.T) {
	w := serve(t)
	allocated := false
	w.gpu.Fail(func(call string) error {
		allocated = allocated || call == "alloc"
		return nil
	})
	good := must(os.ReadFile(w.file("good", 1, 1000, 2000)))
	header := func(text string, data int) []byte {
		out := append([]byte{byte(len(text)), byte(len(text) >> 8), 0, 0, 0, 0, 0, 0}, text...)
		return append(out, make([]byte, data)...)
	}
	c := w.client()
	for what, text := range map[string][]byte{
		"empty":           {},
		"truncated":       good[:len(good)-1],
		"cut in its head": good[:20],
		"something more":  append(bytes.Clone(good), 0),
		"huge header":     append([]byte{0, 0, 0, 0, 0, 0, 0, 0x40}, good...),
		"text":            []byte(strings.Repeat("notes and more notes\n", 100)),
		"lying length":    header(`{"a":{"dtype":"F32","shape":[100],"data_offsets":[0,40]}}`, 40),
		"overlapping":     header(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}`, 12),
		"doubled key":     header(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2),
		"NaN-shaped":      header(`{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}`, 1),
		"beyond numbers":  header(`{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8]}}`, 8),
		"a zip":           append([]byte("PK\x03\x04"), make([]byte, 1000)...),
	} {
		t.Run(what, func(t *testing.T) { c.putFile(wire.CodeInvalidFile, "x", w.write("x", text)) })
	}
	pass := func(what, code string, f *os.File, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("open %s: %v", what, err)
		}
		defer f.Close()
		c.call(code, wire.Request{Op: wire.OpPut, Name: "x"}, f)
		c.call(code, wire.Request{Op: wire.OpGet, Name: "x"}, f)
	}
	open := func(path string, flags int) (*os.File, error) { return os.OpenFile(path, flags, 0) }
	fifo := filepath.Join(w.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := open(w.dir, os.O_RDONLY)
	pass("a folder", wire.CodeInvalidFile, f, err)
	f, err = open("/dev/zero", os.O_RDONLY)
	pass("a device", wire.CodeInvalidFile, f, err)
	f, err = open(fifo, os.O_RDWR|syscall.O_NONBLOCK)
	pass("a pipe", wire.CodeInvalidFile, f, err)
	f, err = open(filepath.Join(w.dir, "good"), os.O_WRONLY)
	pass("what may only be written", wire.CodeInvalidFile, f, err)
	f, err = open(filepath.Join(w.dir, "good"), unix.O_PATH)
	pass("what may not be read", wire.CodeInvalidFile, f, err)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	pass("a socket", wire.CodeInvalidFile, os.NewFile(uintptr(fd), "socket"), err)
	c.call(wire.CodeUsage, wire.Request{Op: wire.OpPut, Name: "x"})
	if allocated {
		t.Error("GPU memory was allocated for an invalid file")
	}
	w.checkEmpty()
}

// TestBadFilesOfFolder checks that invalid files in the folder of models are refused, too. Names that lead
// out of the folder are unknown.
func TestBadFilesOfFolder(t *testing.T) {
	dir := t.TempDir()
	w := serve(t, func(cfg *model.Config) { cfg.Models = filepath.Join(dir, "in") })
	w.dir = dir
	path := w.file("out.safetensors", 1, 100)
	for name, target := range map[string]string{"fifo": "", "zero": "/dev/zero", "dir": dir, "gone": "/nonexistent", "link": path} {
		at := filepath.Join(dir, "in", name+".safetensors")
		err := os.MkdirAll(filepath.Dir(at), 0o700)
		if target == "" {
			err = errors.Join(err, unix.Mkfifo(at, 0o600))
		} else {
			err = errors.Join(err, os.Symlink(target, at))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := w.client()
	for name, code := range map[string]string{
		"fifo": wire.CodeInvalidFile, "zero": wire.CodeInvalidFile, "dir": wire.CodeInvalidFile, "gone": wire.CodeAbsent,
		"none": wire.CodeAbsent, "a/../../out": wire.CodeAbsent, "../out": wire.CodeUsage, "/out": wire.CodeUsage, "": wire.CodeUsage,
		"a\x00b": wire.CodeUsage, strings.Repeat("a", 256): wire.CodeUsage, ".hidden": wire.CodeUsage,
	} {
		c.call(code, wire.Request{Op: wire.OpGet, Name: name})
	}
	w.checkEmpty()
	c.getModel("link", path) // symbolic links are valid: the cache of Hugging Face uses them
}

// TestFileChangesWhileRead checks that a file that shrinks, grows or is written to while it is read causes an
// error, and nothing remains of the model.
func TestFileChangesWhileRead(t *testing.T) {
	for what, change := range map[string]func(path string) error{
		"shrinks":            func(path string) error { return os.Truncate(path, 100_000) },
		"shrinks to nothing": func(path string) error { return os.Truncate(path, 0) },
		"grows":              func(path string) error { return os.Truncate(path, 3_000_000) },
		"is written to": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("xxxx"), 500_000)
			return errors.Join(err, f.Close(), os.Chtimes(path, time.Now(), time.Unix(1700000000, 0)))
		},
		"is written to, and its time set back": func(path string) error {
			var was, now unix.Stat_t
			if err := unix.Stat(path, &was); err != nil {
				return err
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); { // the resolution of ctime is some milliseconds
				_, err := f.WriteAt([]byte("xxxx"), 500_000)
				err = errors.Join(err, os.Chtimes(path, time.Unix(was.Atim.Unix()), time.Unix(was.Mtim.Unix())), unix.Stat(path, &now))
				if err != nil || now.Ctim != was.Ctim {
					return err
				}
			}
			return errors.New("its ctime stays")
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := serve(t)
			path := w.file("a", 1, 1<<20, 1<<20)
			pieces := 0
			w.gpu.Fail(func(call string) error {
				if call == "up" {
					pieces++
				}
				if call == "up" && pieces == 3 {
					return change(path)
				}
				return nil
			})
			w.client().putFile(wire.CodeInvalidFile, "a", path)
			w.checkEmpty()
		})
	}
}

// TestFileChangesDuringWait checks that a file whose header changes while its load waits for room is refused,
// even if its size and mtime are unchanged.
func TestFileChangesDuringWait(t *testing.T) {
	write := func(w *world, header string) string {
		text := fmt.Appendf([]byte{200, 0, 0, 0, 0, 0, 0, 0}, "%-200s", header)
		path := w.write("a", append(text, make([]byte, 1000)...))
		if err := os.Chtimes(path, time.Now(), time.Unix(1700000000, 0)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for what, now := range map[string]string{
		"larger on the GPU": `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[999],"data_offsets":[1,1000]}}`,
		"a longer manifest": `{"aaa":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}`,
		"none":              "",
	} {
		t.Run(what, func(t *testing.T) {
			w := serve(t)
			full := w.file("full", 1, 4<<20-1000)
			c := w.client()
			c.putFile("", "full", full)
			c.getModel("full", full)
			path := write(w, `{"a":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}`)
			other := w.client("blue")
			got := make(chan bool)
			go func() {
				defer close(got)
				other.callWithFile(wire.CodeInvalidFile, wire.Request{Op: wire.OpGet, Name: "a", TimeoutMS: time.Hour.Milliseconds()}, path)
			}()
			w.eventually("the load of the other client waits for room", func() bool { all := c.list(""); return len(all) == 2 && strings.HasPrefix(all[0].Why, "no-room; ") })
			write(w, now)
			c.release("full")
			<-got
			c.call("", wire.Request{Op: wire.OpRemove, Name: "full"})
			if all := c.list(""); len(all) != 0 {
				t.Errorf("models after the refused load: got %+v, want none", all)
			}
		})
	}
}

// TestBadGPU checks that after an error of any driver call nothing remains, and the next load succeeds.
func TestBadGPU(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 1<<20)
	c := w.client()
	broken := errors.New("broken")
	for _, call := range []string{"alloc", "export", "stage", "up", "wait"} {
		w.gpu.Fail(func(which string) error {
			if which == call {
				return broken
			}
			return nil
		})
		c.putFile(wire.CodeInternal, "a", path)
		w.checkEmpty()
	}
	w.gpu.Fail(nil)
	c.putFile("", "a", path)
	c.getModel("a", path)
}

// TestFullGPU checks that, if other processes use the GPU's memory, models that are not held are evicted; if
// that is not enough, the load fails with gpu-memory.
func TestFullGPU(t *testing.T) {
	w := serve(t)
	c := w.client()
	a, b := w.file("a", 1, 1<<20), w.file("b", 2, 1<<20)
	c.putFile("", "a", a)
	w.gpu.Take(w.gpu.In - w.gpu.Used())
	c.putFile("", "b", b) // evicts a
	if s := c.stat("a"); s.State != wire.StateFile || c.totals().Evictions != 1 {
		t.Errorf("got the model a as %+v and %d evictions, want State %v and 1", s, c.totals().Evictions, wire.StateFile)
	}
	c.getModel("b", b)
	c.call(wire.CodeGPUMemory, wire.Request{Op: wire.OpGet, Name: "a", TimeoutMS: 60_000})
	w.gpu.Take(-2 * gpu.MiB)
	c.getModel("a", a)
	w.gpu.Take(2*gpu.MiB - w.gpu.In + 2*(1<<20+64*gpu.KiB))
	c.release("a")
	c.release("b")
	for _, name := range []string{"a", "b"} {
		c.call("", wire.Request{Op: wire.OpRemove, Name: name})
	}
	w.gpu.Take(-w.gpu.Used())
}

// TestCapacity checks that held models stay. A request without a timeout is refused; one with a timeout gets
// the memory of a holder that has disconnected.
func TestCapacity(t *testing.T) {
	w := serve(t)
	c := w.client()
	files := map[string]string{}
	for i, name := range []string{"a", "b", "c"} {
		files[name] = w.file(name, uint64(i), 3<<19) // two of these fit
		c.putFile("", name, files[name])
	}
	c.putFile(wire.CodeCapacity, "big", w.file("big", 9, 5<<20))
	held := []*client{w.client(), w.client()}
	held[0].getModel("a", files["a"])
	held[1].getModel("b", files["b"])
	c.call(wire.CodeBusy, wire.Request{Op: wire.OpGet, Name: "c"})
	c.call(wire.CodeBusy, wire.Request{Op: wire.OpGet, Name: "c", TimeoutMS: 20})
	c.putFile(wire.CodeBusy, "d", files["c"])
	held[0].getModel("a", files["a"]) // a held model needs no room
	waits := make(chan wire.Answer)
	waiter := w.client()
	go func() {
		a, files, _ := waiter.Call(t.Context(), wire.Request{Op: wire.OpGet, Name: "c", TimeoutMS: time.Hour.Milliseconds()})
		for _, f := range files {
			_ = f.Close()
		}
		waits <- a
	}()
	w.eventually("the get of c waits for room", func() bool { return c.stat("c").Reason.Code == "no-room" })
	_ = held[1].Close() // like the end of a killed process
	if a := <-waits; !a.OK {
		t.Errorf("answer to the waiting get of c: got %+v, want OK true", a)
	}
	if s := c.stat("b"); s.State != wire.StateFile {
		t.Errorf("model b after its holder disconnected: got %+v, want State %v", s, wire.StateFile)
	}
	if used := gpu.Bytes(c.totals().Used); used > w.cfg.Capacity || used != w.gpu.Used() {
		t.Errorf("GPU memory: got %v by the daemon's count and %v by the GPU's, want equal amounts of at most %v", used, w.gpu.Used(), w.cfg.Capacity)
	}
}

// TestConcurrentPutsOfOneFile checks that puts and gets of a file that is already being loaded need no room
// for a second copy.
func TestConcurrentPutsOfOneFile(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 3<<20) // only one copy fits
	loading, waits := make(chan bool), make(chan bool)
	resume := sync.OnceFunc(func() { close(waits) })
	defer resume()
	var once sync.Once
	w.gpu.Fail(func(call string) error {
		if call == "up" {
			once.Do(func() { close(loading); <-waits })
		}
		return nil
	})
	var callers sync.WaitGroup
	host := w.client()
	startCall := func(op string) {
		c := w.client()
		callers.Go(func() {
			f, err := os.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			_, files, err := c.Call(t.Context(), wire.Request{Op: op, Name: "a"}, f)
			if err != nil {
				t.Errorf("request %s: %v", op, err)
			}
			for _, f := range files {
				_ = f.Close()
			}
		})
	}
	startCall(wire.OpPut)
	<-loading
	startCall(wire.OpPut)
	w.eventually("the second put waits for room", func() bool { return strings.HasPrefix(host.stat("a").Why, "no-") })
	startCall(wire.OpGet)
	startCall(wire.OpPut)
	resume()
	callers.Wait()
	if s := host.stat("a"); s.Generation != 1 || s.State != wire.StateGPU {
		t.Errorf("model a: got %+v, want Generation 1 and State %v", s, wire.StateGPU)
	}
}

// TestLoadWithoutClientsIsCancelled checks that a load without waiting clients is cancelled.
func TestLoadWithoutClientsIsCancelled(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 1<<20)
	loading, resume := make(chan bool), make(chan bool)
	var once sync.Once
	w.gpu.Fail(func(call string) error {
		if call == "up" {
			once.Do(func() { loading <- true; <-resume })
		}
		return nil
	})
	c := w.client()
	ended := make(chan error)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go func() {
		_, _, err := c.Call(t.Context(), wire.Request{Op: wire.OpPut, Name: "a"}, f)
		ended <- err
	}()
	<-loading
	if s := w.client().stat("a"); s.State != wire.StateLoading {
		t.Errorf("model a during the load: got %+v, want State %v", s, wire.StateLoading)
	}
	_ = c.Close()
	<-ended
	w.eventually("the load is cancelled", func() bool { return len(w.client().list("")) == 0 })
	close(resume)
	w.eventually("the GPU memory is free", func() bool { return w.gpu.Used() == 0 })
	w.client().putFile("", "a", path)
}

// TestClientThatDoesNotReadAnswers checks that a client that does not read its answers loses its connection
// and does not delay others.
func TestClientThatDoesNotReadAnswers(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.SendTime = 50 * time.Millisecond })
	path := w.file("a", 1, 1000)
	w.client().putFile("", "a", path)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.cfg.Socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for err == nil { // until the daemon closes the connection
		_, err = conn.Write([]byte(`{"op":"get","name":"a"}`))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("send requests without reading answers: got %v, want a closed connection", err)
	}
	w.eventually("the closed connection no longer holds the model", func() bool { return w.client().stat("a").Refs == 0 })
	w.client().getModel("a", path)
}

// TestUnreadPipe checks that a read request into a pipe without a reader gets an error and does not delay
// others.
func TestUnreadPipe(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.SendTime = 50 * time.Millisecond })
	path := w.file("a", 1, 1<<20)
	c := w.client()
	c.putFile("", "a", path)
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	c.call(wire.CodeInternal, wire.Request{Op: wire.OpRead, Name: "a"}, to)
	_ = to.Close()
	w.eventually("another client reads the model", func() bool { // a slow host may not read in time
		got, err := c.tryRead("a")
		if err == nil && !bytes.Equal(got, must(os.ReadFile(path))) {
			t.Error("content read through the pipe: got other bytes than the file's")
		}
		return err == nil
	})
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	c.call(wire.CodeInternal, wire.Request{Op: wire.OpRead, Name: "a"}, writer)
	_ = writer.Close()
	w.eventually("no client holds the model", func() bool { return c.stat("a").Refs == 0 })
}

// TestSlowReader checks that a client that reads slowly into a pipe delays neither other tenants' readers nor
// loads.
func TestSlowReader(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.SendTime = time.Hour })
	path := w.file("a", 1, 1<<20)
	host, blue, own := w.client(), w.client("blue"), w.client("default")
	for _, c := range []*client{blue, own} {
		c.callWithFile("", wire.Request{Op: wire.OpPut, Name: "a", Public: true}, path)
	}
	for _, c := range []*client{host, blue, own} { // more clients than stages
		from, to, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		go func() {
			_, _, _ = c.Call(t.Context(), wire.Request{Op: wire.OpRead, Name: "a"}, to)
			_ = to.Close()
		}()
		_ = from.SetReadDeadline(time.Now().Add(patience))
		if _, err := from.Read(make([]byte, 1)); err != nil {
			t.Fatalf("nothing is written: %v", err)
		}
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		w.client().callWithFile("", wire.Request{Op: wire.OpPut, Name: "b", Tenant: "green"}, path)
		if got := w.client().read("a", "green"); !bytes.Equal(got, must(os.ReadFile(path))) {
			t.Error("content read by another tenant: got other bytes than the file's")
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Errorf("another tenant's requests have not ended after %v, while a client reads slowly", patience)
	}
}

// TestMalformed checks that a malformed packet ends its own connection only.
func TestMalformed(t *testing.T) {
	w := serve(t)
	other := w.client()
	for _, packet := range []string{"", "{", "[]", "null", "null{}", "\x00", `{"op":1}`, `{"op":"get","timeout_ms":1.5}`, strings.Repeat(" ", wire.MaxRequest) + "{}"} {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.cfg.Socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if n, err := conn.Read(make([]byte, 100)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("answer to the malformed packet %.20q: got %d bytes, %v; want a closed connection", packet, n, err)
		}
		_ = conn.Close()
	}
	other.totals()
	// A well-formed request with invalid contents gets an error.
	for _, r := range []wire.Request{
		{}, {Op: "fly"}, {Op: wire.OpGet}, {Op: wire.OpGet, Name: "a", TimeoutMS: -1}, {Op: wire.OpGet, Name: "a", Tenant: "a/b"},
		{Op: wire.OpStore, Name: "a"}, {Op: wire.OpHold, Name: "a"}, {Op: wire.OpRead, Name: "a"},
	} {
		other.call(wire.CodeUsage, r)
	}
	for range 3 {
		other.call(wire.CodeUsage, wire.Request{Op: wire.OpRemove, Name: "a"}, os.Stdin)
	}
	other.call(wire.CodeUsage, wire.Request{Op: wire.OpGet, Name: "a"}, os.Stdin, os.Stdin)
}

// TestID checks that an answer repeats the ID of its request. Unknown keys are ignored.
func TestID(t *testing.T) {
	w := serve(t)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.cfg.Socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, id := range []string{`7`, `"a<b"`, `{"x":[1]}`} {
		if _, err := fmt.Fprintf(conn, `{"op":"get","name":"a","id":%s,"more":{}}`, id); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		n, err := conn.Read(buf)
		want := `{"ok":false,"id":` + id + `,"error":{"code":"absent","message":"there is no model a"}}`
		if err != nil || string(buf[:n]) != want {
			t.Errorf("answer: got %s, %v, want %s", buf[:n], err, want)
		}
	}
}

// TestTenants checks that a model belongs to its tenant, unless it is public.
func TestTenants(t *testing.T) {
	w := serve(t)
	host, blue, own := w.client(), w.client("blue"), w.client("default")
	path := w.file("a", 1, 1000)
	pass := func(c *client, code string, r wire.Request) {
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.call(code, r, f)
	}
	pass(blue, "", wire.Request{Op: wire.OpPut, Name: "a"})
	pass(blue, "", wire.Request{Op: wire.OpPut, Name: "shown", Public: true})
	host.call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "a"})
	own.call(wire.CodeAbsent, wire.Request{Op: wire.OpStat, Name: "a"})
	own.call(wire.CodeAbsent, wire.Request{Op: wire.OpRemove, Name: "shown"})
	own.getModel("shown", path)
	own.release("shown")
	host.call("", wire.Request{Op: wire.OpGet, Name: "a", Tenant: "blue"})
	blue.call(wire.CodeDenied, wire.Request{Op: wire.OpGet, Name: "a", Tenant: "default"})
	pass(blue, wire.CodeDenied, wire.Request{Op: wire.OpPut, Name: "b", Source: path})
	blue.call(wire.CodeDenied, wire.Request{Op: wire.OpTenant, Tenant: "blue"})
	if all := own.list(""); len(all) != 1 || all[0].Name != "shown" {
		t.Errorf("models that the tenant default can list: got %+v, want shown", all)
	}
	if all := host.list(""); len(all) != 2 {
		t.Errorf("models that the host can list: got %+v, want 2", all)
	}
	// Equal content of two tenants takes two copies. A file passed by a container has no path, so
	// the client must pass it again after an eviction.
	pass(own, "", wire.Request{Op: wire.OpPut, Name: "a"})
	if used := w.gpu.Used(); used != 3*128*gpu.KiB && used != 3*64*gpu.KiB {
		t.Errorf("GPU memory of three copies: got %v, want %v or %v", used, 3*128*gpu.KiB, 3*64*gpu.KiB)
	}
	if s := blue.stat("a"); s.Source != "" {
		t.Errorf("blue's model a: got %+v, want Source empty", s)
	}
	host.call("", wire.Request{Op: wire.OpTenant, Tenant: "green"})
	green := w.client("green")
	green.call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "a"})
	green.getModel("shown", path)
}

// TestPublicFollowsContent checks that a public model stays public if the same content is put or loaded
// again. New content is public only if its put requests that.
func TestPublicFollowsContent(t *testing.T) {
	w := serve(t)
	blue, green := w.client("blue"), w.client("default")
	shown, secret, big := w.file("shown", 1, 1000), w.file("secret", 2, 1000), w.file("big", 3, 4<<20-1000)
	const public, private = true, false
	put := func(path string, public bool) {
		t.Helper()
		blue.callWithFile("", wire.Request{Op: wire.OpPut, Name: "m", Public: public}, path)
	}
	put(shown, public)
	put(shown, private)
	green.getModel("m", shown)
	green.release("m")
	w.client().putFile("", "big", big) // evicts m
	put(shown, private)
	green.getModel("m", shown)
	put(secret, private)
	green.call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "m"})
	blue.getModel("m", secret)
	put(secret, public)
	green.getModel("m", secret)
	manifest := w.write("manifest", []byte(`{"tensors":{"a":{"dtype":"U8","shape":[8],"offset":0,"bytes":8}}}`))
	blue.callWithFile("", wire.Request{Op: wire.OpStore, Name: "m", Size: 8}, manifest)
	blue.call("", wire.Request{Op: wire.OpCommit, Name: "m"})
	green.call(wire.CodeAbsent, wire.Request{Op: wire.OpStat, Name: "m"})
}

// TestPublicStoreReplacesPrivateModel checks that a private model stays hidden while a public one that will
// replace it is stored.
func TestPublicStoreReplacesPrivateModel(t *testing.T) {
	w := serve(t)
	blue, green := w.client("blue"), w.client("default")
	blue.callWithFile("", wire.Request{Op: wire.OpPut, Name: "m"}, w.file("secret", 2, 1000))
	big := w.file("big", 3, 4<<20-1000)
	w.client().putFile("", "big", big) // evicts m
	w.client().call("", wire.Request{Op: wire.OpRemove, Name: "big"})
	manifest := w.write("manifest", []byte(`{"tensors":{"a":{"dtype":"U8","shape":[8],"offset":0,"bytes":8}}}`))
	blue.callWithFile("", wire.Request{Op: wire.OpStore, Name: "m", Size: 8, Public: true}, manifest)
	if a, _ := green.call("", wire.Request{Op: wire.OpList}); len(a.Models) > 0 {
		t.Errorf("models that green can list before the commit: got %+v, want none", a.Models)
	}
	blue.call("", wire.Request{Op: wire.OpCommit, Name: "m"})
	if a, _ := green.call("", wire.Request{Op: wire.OpList}); len(a.Models) != 1 || a.Models[0].Bytes != 8 {
		t.Errorf("models that green can list after the commit: got %+v, want the public one of 8 bytes", a.Models)
	}
}

func TestStore(t *testing.T) {
	w := serve(t)
	manifest := func(text string) *os.File {
		f, err := os.Open(w.write("manifest", []byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	const good = `{"tensors":{"a":{"dtype":"F32","shape":[2],"offset":256,"bytes":8}},"metadata":{"k":"v"}}`
	c := w.client()
	a, files := c.call("", wire.Request{Op: wire.OpStore, Name: "s", Size: 1000}, manifest(good))
	if a.Size < 1000 || len(files) != 2 {
		t.Fatalf("store s: got %+v and %d descriptors, want Size of at least 1000 and 2 descriptors", a, len(files))
	}
	c.call("", wire.Request{Op: wire.OpTouch, Name: "s"})
	other := w.client()
	other.call(wire.CodeAbsent, wire.Request{Op: wire.OpTouch, Name: "s"}) // not its store
	other.call(wire.CodeBusy, wire.Request{Op: wire.OpGet, Name: "s"})
	got := make(chan error)
	go func() {
		_, files, err := other.Call(t.Context(), wire.Request{Op: wire.OpGet, Name: "s", TimeoutMS: time.Hour.Milliseconds()})
		for _, f := range files {
			_ = f.Close()
		}
		got <- err
	}()
	if _, err := files[0].WriteAt([]byte("12345678"), 256); err != nil { // the fake GPU's memory is a file
		t.Fatal(err)
	}
	if a, _ := c.call("", wire.Request{Op: wire.OpCommit, Name: "s"}); a.Generation != 1 {
		t.Errorf("commit s: got %+v, want Generation 1", a)
	}
	if err := <-got; err != nil {
		t.Errorf("get s while it is stored: %v", err)
	}
	if text := c.read("s"); !bytes.HasSuffix(text, []byte("12345678")) || !bytes.Contains(text, []byte(`"k":"v"`)) {
		t.Errorf("content of s: got %q, want the stored bytes and the metadata", text)
	}
	for _, op := range []string{wire.OpTouch, wire.OpCommit} {
		c.call(wire.CodeAbsent, wire.Request{Op: op, Name: "s"})
	}
	// If the store is abandoned, waiting clients get an error.
	undone := w.client()
	undone.call("", wire.Request{Op: wire.OpStore, Name: "u", Size: 1000}, manifest(good))
	go func() {
		_, _, err := w.client().Call(t.Context(), wire.Request{Op: wire.OpGet, Name: "u", TimeoutMS: time.Hour.Milliseconds()})
		got <- err
	}()
	w.eventually("the model u is being stored", func() bool { return c.stat("u").State == wire.StateLoading })
	_ = undone.Close()
	var refused *wire.Error
	if err := <-got; !errors.As(err, &refused) || refused.Code != wire.CodeAbsent {
		t.Errorf("get of an abandoned store: got %v, want the code %s", err, wire.CodeAbsent)
	}
	for what, text := range map[string]string{
		"not JSON":       `{`,
		"out of it":      `{"tensors":{"a":{"dtype":"F32","shape":[2],"offset":1024,"bytes":8}}}`,
		"beyond numbers": `{"tensors":{"a":{"dtype":"F32","shape":[2],"offset":256,"bytes":9223372036854775807}}}`,
		"not aligned":    `{"tensors":{"a":{"dtype":"F32","shape":[2],"offset":8,"bytes":8}}}`,
		"below 0":        `{"tensors":{"a":{"dtype":"F32","shape":[-2],"offset":0,"bytes":8}}}`,
	} {
		t.Run(what, func(t *testing.T) {
			c.call(wire.CodeInvalidFile, wire.Request{Op: wire.OpStore, Name: "bad", Size: 1000}, manifest(text))
		})
	}
	c.call(wire.CodeCapacity, wire.Request{Op: wire.OpStore, Name: "big", Size: 1 << 40}, manifest(good))
	// Without holders the model is evicted, and it has no file to load it from.
	_ = other.Close()
	_ = c.Close()
	w.eventually("no client holds the model", func() bool { return w.client().totals().Refs == 0 })
	w.client().putFile("", "a", w.file("a", 1, 4<<20-1000))
	w.client().call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "s"})
}

// TestStoreOfTenant checks that an uncommitted store cannot exceed its tenant's share, whatever the tenant's
// other connections do. It ends after StorePause without a sign of life.
func TestStoreOfTenant(t *testing.T) {
	const share = 2 * gpu.MiB
	for name, c := range map[string]struct {
		change  func(c *model.Config)
		dynamic bool // add the tenants while the daemon runs
	}{
		"equal parts":  {change: func(c *model.Config) { c.Tenants = []string{"a", "b"} }},
		"a size":       {change: func(c *model.Config) { c.Tenants, c.Bounds = []string{"a", "b"}, map[string]gpu.Bytes{"a": share} }},
		"of functions": {change: func(c *model.Config) { c.Tenants = nil }, dynamic: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, c.change)
			if c.dynamic {
				for _, tenant := range []string{"default", "a", "b"} {
					w.client().call("", wire.Request{Op: wire.OpTenant, Tenant: tenant})
				}
			}
			store := func(of, name, code string, size gpu.Bytes) *client {
				t.Helper()
				f, err := os.Open(w.write("manifest", []byte(`{"tensors":{}}`)))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				as := w.client(of)
				as.call(code, wire.Request{Op: wire.OpStore, Name: name, Size: int64(size)}, f)
				return as
			}
			store("a", "large", wire.CodeCapacity, share+1)
			first := store("a", "one", "", share-64*gpu.KiB*4)
			store("a", "two", wire.CodeBusy, gpu.MiB)
			w.client("b").callWithFile("", wire.Request{Op: wire.OpPut, Name: "m"}, w.file("m", 1, int64(share)-64<<10))
			_ = first.Close()
			w.eventually("the tenant's share is free", func() bool { return w.client().totals().Used <= int64(share) })
			store("a", "two", "", gpu.MiB)
		})
	}
}

func TestStorePauses(t *testing.T) {
	w := serve(t, func(c *model.Config) { c.StorePause = 100 * time.Millisecond })
	f, err := os.Open(w.write("manifest", []byte(`{"tensors":{}}`)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := w.client("blue")
	c.call("", wire.Request{Op: wire.OpStore, Name: "s", Size: 4 << 20}, f)
	w.eventually("the store has ended", func() bool { return w.client().totals().Used == 0 })
	w.client().putFile("", "m", w.file("m", 1, 1000))
	c.call(wire.CodeAbsent, wire.Request{Op: wire.OpTouch, Name: "s"})
	for range 2 { // the first answer explains why the store ended
		c.call(wire.CodeAbsent, wire.Request{Op: wire.OpCommit, Name: "s"})
	}
	c.call("", wire.Request{Op: wire.OpStat, Name: "", Tenant: "blue"})
}

// TestStoreEndsDuringAnswer checks that, if a store ends while its answer is sent, the answer either has
// valid descriptors or reports the end.
func TestStoreEndsDuringAnswer(t *testing.T) {
	w := serve(t, func(c *model.Config) { c.StorePause = 1 })
	f, err := os.Open(w.write("manifest", []byte(`{"tensors":{}}`)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 200 {
		c := w.client("blue")
		_, files, err := c.Call(t.Context(), wire.Request{Op: wire.OpStore, Name: "s", Size: 1 << 10}, f)
		var refused *wire.Error
		if err == nil && len(files) != 2 || err != nil && (!errors.As(err, &refused) || refused.Code != wire.CodeAbsent) {
			t.Fatalf("store s: got %v and %d descriptors, want 2 descriptors or the code %s", err, len(files), wire.CodeAbsent)
		}
		for _, f := range files {
			if info, err := f.Stat(); err != nil || info.Size() == 0 {
				t.Errorf("descriptor of the store: got %v, %v; want a file that is not empty", info, err)
			}
			_ = f.Close()
		}
		_ = c.Close()
	}
}

// TestHold checks that a process holds a model until the process ends.
func TestHold(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 1000)
	c := w.client()
	c.putFile("", "a", path)
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(process.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := os.NewFile(uintptr(fd), "process")
	defer of.Close()
	c.call(wire.CodeAbsent, wire.Request{Op: wire.OpHold, Name: "a"}, of)
	c.getModel("a", path)
	c.call(wire.CodeUsage, wire.Request{Op: wire.OpHold, Name: "a"}, os.Stdin)
	c.call("", wire.Request{Op: wire.OpHold, Name: "a"}, of)
	_ = c.Close()
	other := w.client()
	if s := other.stat("a"); s.Refs != 1 {
		t.Errorf("model a held by a process: got %+v, want Refs 1", s)
	}
	other.putFile(wire.CodeBusy, "big", w.file("big", 2, 4<<20-1000))
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	w.eventually("the killed process no longer holds the model", func() bool { return other.stat("a").Refs == 0 })
	other.putFile("", "big", filepath.Join(w.dir, "big"))
}

// TestReleaseAfterNameIsReused checks that release and hold refer to the model that the client got under a
// name, even if the name now denotes another model or none.
func TestReleaseAfterNameIsReused(t *testing.T) {
	w := serve(t)
	host, blue, green := w.client(), w.client("blue"), w.client("default")
	path, other := w.file("a", 1, 1000), w.file("b", 2, 1000)
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	of := os.NewFile(uintptr(fd), "process")
	defer of.Close()
	got := func(c *client, path string) {
		t.Helper()
		a, files := c.call("", wire.Request{Op: wire.OpGet, Name: "m"})
		c.check(a, files, path)
	}
	blue.callWithFile("", wire.Request{Op: wire.OpPut, Name: "m", Public: true}, path)
	for range 3 {
		got(green, path)
	}
	got(host, path)
	blue.call("", wire.Request{Op: wire.OpRemove, Name: "m"})
	green.release("m")
	if refs := host.totals().Refs; refs != 3 {
		t.Errorf("holders of all models after a release: got %d, want 3", refs)
	}
	green.callWithFile("", wire.Request{Op: wire.OpPut, Name: "m"}, other)
	got(green, other)
	host.call("", wire.Request{Op: wire.OpHold, Name: "m"}, of)
	green.release("m")
	if refs := green.stat("m").Refs; refs != 1 {
		t.Errorf("holders of green's own model m: got %d, want 1", refs)
	}
	green.release("m")
	green.release("m")
	green.call(wire.CodeAbsent, wire.Request{Op: wire.OpRelease, Name: "m"})
	host.call(wire.CodeAbsent, wire.Request{Op: wire.OpRelease, Name: "m"})
	if refs := host.totals().Refs; refs != 1 {
		t.Errorf("holders of all models at the end: got %d, want 1, the process", refs)
	}
}

// TestHoldUsesNoThreads checks that holding processes take no threads of the daemon. There may be many of
// them, and Go ends a program with 10,000 threads.
func TestHoldUsesNoThreads(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 1000)
	c := w.client()
	c.putFile("", "a", path)
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	of := os.NewFile(uintptr(fd), "process")
	defer of.Close()
	threads := func() int {
		all, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := threads()
	const many = 200
	for range many {
		_, files := c.call("", wire.Request{Op: wire.OpGet, Name: "a"})
		for _, f := range files {
			_ = f.Close()
		}
		c.call("", wire.Request{Op: wire.OpHold, Name: "a"}, of)
	}
	if refs := c.stat("a").Refs; refs != many {
		t.Errorf("holders of a: got %d, want %v", refs, many)
	}
	if n := threads() - before; n > many/4 {
		t.Errorf("additional threads for %d holding processes: got %d, want at most %d", many, n, many/4)
	}
}

// TestCatalogueFails checks that models remain usable, and are saved as soon as the catalogue works again.
func TestCatalogueFails(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 1000)
	w.catalogue.mu.Lock()
	w.catalogue.err = errors.New("locked")
	w.catalogue.mu.Unlock()
	c := w.client()
	done := make(chan bool)
	go func() {
		c.putFile("", "a", path)
		close(done)
	}()
	w.eventually("the model is listed", func() bool { return len(w.client().list("")) == 1 })
	w.catalogue.mu.Lock()
	w.catalogue.err = nil
	w.catalogue.mu.Unlock()
	<-done
	w.eventually("the model is in the catalogue", func() bool {
		all, _ := w.catalogue.Models(t.Context())
		return len(all) == 1
	})
}

// TestSecondDaemon checks that only one daemon can serve a run directory.
func TestSecondDaemon(t *testing.T) {
	w := serve(t)
	if _, err := model.Open(w.cfg); err == nil || !strings.Contains(err.Error(), "another gfaas-modeld serves") {
		t.Errorf("open a second daemon: got %v, want an error with \"another gfaas-modeld serves\"", err)
	}
	w.client().totals()
	if _, err := modeld.Dial(t.Context(), filepath.Join(t.TempDir(), "model.sock")); err == nil {
		t.Error("dial a socket that does not exist: got no error, want one")
	}
}

// TestTenantRequestsDuringShutdown checks that requests for sockets during a shutdown do not delay it, and no
// socket remains.
func TestTenantRequestsDuringShutdown(t *testing.T) {
	w := serve(t, func(cfg *model.Config) {
		for n := range 100 { // closing their sockets takes a while
			cfg.Tenants = append(cfg.Tenants, fmt.Sprint("t", n))
		}
	})
	for range 10 {
		var callers sync.WaitGroup
		begun := make(chan bool)
		for n := range 4 {
			c := w.client()
			callers.Go(func() {
				for i := 0; ; i++ {
					if _, _, err := c.Call(t.Context(), wire.Request{Op: wire.OpTenant, Tenant: fmt.Sprintf("w%d-%d", n, i)}); err != nil {
						return
					}
					if i == 3 {
						begun <- true
					}
				}
			})
		}
		for range 4 {
			<-begun
		}
		w.stop()
		callers.Wait()
		if remaining, err := filepath.Glob(filepath.Join(filepath.Dir(w.cfg.Socket), "*.sock")); err != nil || len(remaining) != 0 {
			t.Fatalf("sockets after the end: got %s, %v; want none", remaining, err)
		}
		w.start()
	}
}
