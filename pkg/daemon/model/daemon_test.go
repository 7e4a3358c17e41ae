package model_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device/devicetest"
	"github.com/gfaas/gfaas/pkg/safetensors"
	"github.com/gfaas/gfaas/pkg/splitmix"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// patience is how long a test waits for a required event.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// catalogue is a Catalogue in memory.
type catalogue struct {
	mu      sync.Mutex
	records map[string]wire.Record
	err     error // returned by every write
}

func (c *catalogue) Models(context.Context) (all []wire.Record, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(c.records)) {
		all = append(all, c.records[key])
	}
	return all, nil
}

func (c *catalogue) PutModel(_ context.Context, r wire.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.records[r.Tenant+"/"+r.Name] = r
	}
	return c.err
}

func (c *catalogue) DeleteModel(_ context.Context, tenant, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		delete(c.records, tenant+"/"+name)
	}
	return c.err
}

// world is a daemon on a fake GPU with its environment.
type world struct {
	t         *testing.T
	cfg       model.Config
	gpu       *devicetest.Fake
	catalogue *catalogue
	dir       string // folder of model files
	stop      func()
}

// serve starts a daemon with 4 MiB for models on a GPU of 8 MiB. Its staging limit is 128 KiB, so that all
// models are loaded in several pieces.
func serve(t *testing.T, change ...func(*model.Config)) *world {
	t.Helper()
	run, err := os.MkdirTemp("", "modeld")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	w := &world{
		t: t, gpu: &devicetest.Fake{ID: "GPU-1", In: 8 * gpu.MiB}, catalogue: &catalogue{records: map[string]wire.Record{}}, dir: t.TempDir(),
	}
	w.cfg = model.Config{
		Socket: filepath.Join(run, "model.sock"), Tenants: []string{"blue"}, Capacity: 4 * gpu.MiB, Staging: 128 * gpu.KiB,
		GPU: w.gpu, Catalogue: w.catalogue,
	}
	for _, f := range change {
		f(&w.cfg)
	}
	w.start()
	t.Cleanup(func() {
		w.stop()
		if used, staged := w.gpu.Used(), w.gpu.Staged(); used != 0 || staged != 0 {
			t.Errorf("memory after the end of the daemon: got %v on the GPU and %v pinned, want neither", used, staged)
		}
	})
	return w
}

func (w *world) start() {
	w.t.Helper()
	d, err := model.Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.t.Errorf("serve: %v", err)
			}
		case <-time.After(patience):
			w.t.Fatalf("the daemon has not ended after %v", patience)
		}
	})
}

// client connects to model.sock, or to the socket of a tenant.
func (w *world) client(tenant ...string) *client {
	w.t.Helper()
	socket := w.cfg.Socket
	if len(tenant) > 0 {
		socket = filepath.Join(modeld.TenantFolder(filepath.Dir(socket), tenant[0]), "model.sock")
	}
	c, err := modeld.Dial(w.t.Context(), socket)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return &client{w, c}
}

// client is a client that reports unexpected results to the test.
type client struct {
	*world
	*modeld.Client
}

// call sends a request and expects the given error code, or success for "".
func (c *client) call(code string, r wire.Request, files ...*os.File) (wire.Answer, []*os.File) {
	c.t.Helper()
	a, got, err := c.Call(c.t.Context(), r, files...)
	var refused *wire.Error
	switch {
	case err == nil && code == "":
	case errors.As(err, &refused) && refused.Code == code && refused.Message != "":
	default:
		c.t.Fatalf("request %s of %q: got %v (%+v), want the code %q", r.Op, r.Name, err, a, code)
	}
	for _, f := range got {
		c.t.Cleanup(func() { _ = f.Close() })
	}
	return a, got
}

// putFile puts a file.
func (c *client) putFile(code, name, path string) {
	c.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	c.call(code, wire.Request{Op: wire.OpPut, Name: name, Source: path}, f)
}

// getModel holds a model and checks that the mapped memory has the tensors of a file.
func (c *client) getModel(name, path string) wire.Answer {
	c.t.Helper()
	a, files := c.call("", wire.Request{Op: wire.OpGet, Name: name})
	c.check(a, files, path)
	return a
}

// check compares the memory of an answer with a file.
func (c *client) check(a wire.Answer, files []*os.File, path string) {
	c.t.Helper()
	if len(files) != 2 || a.GPU != c.world.gpu.ID {
		c.t.Fatalf("answer: got %+v and %d descriptors, want the GPU %s and 2 descriptors", a, len(files), c.world.gpu.ID)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	if a.SHA256 != hex.EncodeToString(sum[:]) {
		c.t.Errorf("SHA-256 of %s: got %s, want %x", a.Name, a.SHA256, sum)
	}
	h, err := safetensors.Read(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		c.t.Fatal(err)
	}
	places, metadata, err := wire.ParseManifest(files[1], a.Size)
	if err != nil {
		c.t.Fatal(err)
	}
	if !maps.Equal(metadata, h.Metadata) || len(places) != len(h.Tensors) {
		c.t.Errorf("manifest: got %d tensors and the metadata %v, want %d and %v", len(places), metadata, len(h.Tensors), h.Metadata)
	}
	image := c.memory(files[0], a.Size)
	for _, p := range places {
		at := slices.IndexFunc(h.Tensors, func(t safetensors.Tensor) bool { return t.Name == p.Name })
		if at < 0 {
			c.t.Fatalf("the manifest has a tensor %s, which the file does not have", p.Name)
		}
		t := h.Tensors[at]
		if p.Offset%wire.Alignment != 0 || p.DType != t.DType || !slices.Equal(p.Shape, t.Shape) ||
			!bytes.Equal(image[p.Offset:p.Offset+p.Bytes], text[t.Offset:t.Offset+t.Bytes]) {
			c.t.Errorf("tensor %s: got %+v, want an aligned copy of %+v with the same bytes", p.Name, p, t)
		}
		clear(image[p.Offset : p.Offset+p.Bytes])
	}
	if len(bytes.Trim(image, "\x00")) > 0 {
		c.t.Error("the memory between the tensors: got other bytes than zeros")
	}
}

// memory reads GPU memory through its descriptor.
func (c *client) memory(f *os.File, size int64) []byte {
	c.t.Helper()
	m, err := c.world.gpu.Import(f, gpu.Bytes(size))
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := c.world.gpu.Stage(gpu.Bytes(size))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := errors.Join(s.Down(m, 0, int(size)), s.Wait(), m.Free(), s.Free()); err != nil {
		c.t.Fatal(err)
	}
	return s.Buffer()
}

// read returns the model's file as the daemon writes it back. The name is resolved for the given tenant.
func (c *client) read(name string, tenant ...string) []byte {
	c.t.Helper()
	text, err := c.tryRead(name, tenant...)
	if err != nil {
		c.t.Fatal(err)
	}
	return text
}

// tryRead does the same as read, but returns errors.
func (c *client) tryRead(name string, tenant ...string) ([]byte, error) {
	c.t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	defer from.Close()
	text := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(from)
		text <- all
	}()
	_, _, err = c.Call(c.t.Context(), wire.Request{Op: wire.OpRead, Name: name, Tenant: strings.Join(tenant, "")}, to)
	_ = to.Close()
	return <-text, err
}

func (c *client) release(name string) {
	c.t.Helper()
	c.call("", wire.Request{Op: wire.OpRelease, Name: name})
}

func (c *client) stat(name string) wire.Status {
	c.t.Helper()
	a, _ := c.call("", wire.Request{Op: wire.OpStat, Name: name})
	return *a.Model
}

func (c *client) totals() wire.Totals {
	c.t.Helper()
	a, _ := c.call("", wire.Request{Op: wire.OpStat})
	return *a.Daemon
}

// eventually waits until a condition holds.
func (w *world) eventually(condition string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s", patience, condition)
		}
	}
}

// file writes a model whose tensors have the given lengths and bytes derived from seed. It returns the path.
func (w *world) file(name string, seed uint64, lengths ...int64) string {
	w.t.Helper()
	var tensors []safetensors.Tensor
	total := int64(0)
	for i, n := range lengths {
		tensors = append(tensors, safetensors.Tensor{Name: strings.Repeat("t", i+1), DType: "U8", Shape: []int64{n}, Bytes: n})
		total += n
	}
	text, err := safetensors.AppendHeader(nil, tensors, map[string]string{"seed": name})
	if err != nil {
		w.t.Fatal(err)
	}
	from := splitmix.Source(seed)
	for range total {
		text = append(text, byte(from.Uint64()))
	}
	return w.write(name, text)
}

func (w *world) write(name string, text []byte) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func TestPutGet(t *testing.T) {
	w := serve(t)
	c := w.client()
	path := w.file("a", 1, 1, 0, 300, 200_000, 65536, 3)
	c.putFile("", "a", path)
	c.getModel("a", path)
	other := w.client()
	other.getModel("a", path)
	if s := c.stat("a"); s.State != wire.StateGPU || s.Refs != 2 || s.Loads != 1 || s.Generation != 1 || s.Tensors != 6 || s.Source != path || s.LastUsed == nil {
		t.Errorf("model a: got %+v; want State %v, Refs 2, Loads 1, Generation 1, Tensors 6, Source %v, LastUsed set", s, wire.StateGPU, path)
	}
	if got := c.read("a"); !bytes.Equal(got, must(os.ReadFile(path))) {
		t.Error("content of a: got other bytes than the file's")
	}
	c.release("a")
	c.call(wire.CodeAbsent, wire.Request{Op: wire.OpRelease, Name: "a"})
	_ = other.Close()
	w.eventually("no client holds the model a", func() bool { return c.stat("a").Refs == 0 })
	if now := c.totals(); now.Loads != 1 || now.Hits != 3 || now.Models != 1 || gpu.Bytes(now.Used) != w.gpu.Used() {
		t.Errorf("totals: got %+v, want Loads 1, Hits 3, Models 1, Used %v", now, w.gpu.Used())
	}
	if staged := w.gpu.Staged(); staged > w.cfg.Staging {
		t.Errorf("pinned memory: got %v, want at most %v", staged, w.cfg.Staging)
	}
	// A model much larger than the staging limit, and one without tensors.
	big, none := w.file("big", 2, 2<<20, 1<<20), w.file("none", 3)
	c.putFile("", "big", big)
	c.getModel("big", big)
	c.putFile("", "none", none)
	c.getModel("none", none)
	if staged := w.gpu.Staged(); staged > w.cfg.Staging {
		t.Errorf("pinned memory after a large model: got %v, want at most %v", staged, w.cfg.Staging)
	}
}

func must(text []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return text
}

// TestOneLoad checks that concurrent requests of 100 clients for a model cause one load.
func TestOneLoad(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.Models = t.TempDir() })
	w.dir = w.cfg.Models
	path := w.file("m.safetensors", 1, 1<<20)
	var all sync.WaitGroup
	for range 100 {
		c := w.client()
		all.Go(func() { c.getModel("m", path) })
	}
	all.Wait()
	if now := w.client().totals(); now.Loads != 1 || now.Refs != 100 || gpu.Bytes(now.Used) != w.gpu.Used() {
		t.Errorf("totals after 100 gets: got %+v, want Loads 1, Refs 100, Used %v", now, w.gpu.Used())
	}
	// If the load fails, all clients get the error, and nothing remains.
	w.write("bad.safetensors", []byte("no model"))
	used := w.gpu.Used()
	for range 100 {
		c := w.client()
		all.Go(func() { c.call(wire.CodeInvalidFile, wire.Request{Op: wire.OpGet, Name: "bad"}) })
	}
	all.Wait()
	if w.gpu.Used() != used || len(w.client().list("")) != 1 {
		t.Errorf("after failed loads: got %v of GPU memory and %d models, want %v and 1", w.gpu.Used(), len(w.client().list("")), used)
	}
}

func (c *client) list(tenant string) []wire.Status {
	c.t.Helper()
	all, err := c.Models(c.t.Context(), tenant)
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

func TestGenerations(t *testing.T) {
	w := serve(t)
	c := w.client()
	first, second := w.file("first", 1, 100_000), w.file("second", 2, 100_000)
	c.putFile("", "a", first)
	old := w.client()
	held := old.getModel("a", first)
	c.putFile("", "a", first)
	c.putFile("", "a", w.file("copy of first", 1, 100_000)) // different metadata, so different content
	c.putFile("", "a", second)
	if s := c.stat("a"); s.Generation != 3 || s.Loads != 3 || s.Source != second {
		t.Errorf("model a: got %+v; want Generation 3, Loads 3, Source %v", s, second)
	}
	if held.Generation != 1 || c.getModel("a", second).Generation != 3 {
		t.Errorf("generations: got %d for the first holder, want 1, and 3 for a new one", held.Generation)
	}
	if used := w.gpu.Used(); used != 2*gpu.Bytes(held.Size) {
		t.Errorf("GPU memory of the first and the last generation, which are held: got %v, want %v", used, 2*gpu.Bytes(held.Size))
	}
	old.release("a")
	w.eventually("the memory of the first generation is free", func() bool { return w.gpu.Used() == gpu.Bytes(held.Size) })
	// A removed model stays available to its holders.
	c.call("", wire.Request{Op: wire.OpRemove, Name: "a"})
	c.call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "a"})
	c.call(wire.CodeAbsent, wire.Request{Op: wire.OpRemove, Name: "a"})
	if w.gpu.Used() == 0 {
		t.Error("the removed model has no GPU memory, although a client holds it")
	}
	c.release("a")
	if w.gpu.Used() != 0 {
		t.Errorf("GPU memory after the last holder released the removed model: got %v, want 0", w.gpu.Used())
	}
}

func TestChecksum(t *testing.T) {
	w := serve(t)
	c := w.client()
	path := w.file("a", 1, 1000)
	sum := sha256.Sum256(must(os.ReadFile(path)))
	put := func(code, sha string) {
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.call(code, wire.Request{Op: wire.OpPut, Name: "a", SHA256: sha}, f)
	}
	put(wire.CodeChecksum, strings.Repeat("0", 64))
	if len(c.list("")) != 0 || w.gpu.Used() != 0 {
		t.Errorf("after a refused file: got %d models and %v of GPU memory, want neither", len(c.list("")), w.gpu.Used())
	}
	put("", hex.EncodeToString(sum[:]))
	put(wire.CodeChecksum, strings.Repeat("0", 64))
	c.getModel("a", path)
}

// TestRestart checks that the next daemon knows the models, and loads a file only if it is unchanged.
func TestRestart(t *testing.T) {
	w := serve(t)
	c := w.client()
	a, b := w.file("a", 1, 1000), w.file("b", 2, 1000)
	c.putFile("", "a", b)
	c.putFile("", "a", a)
	c.putFile("", "b", b)
	w.stop()
	w.start()
	c = w.client()
	if s := c.stat("a"); s.State != wire.StateFile || s.GPUBytes != 0 || s.Generation != 2 || s.Loads != 0 {
		t.Errorf("model a after a restart: got %+v; want State %v, GPUBytes 0, Generation 2, Loads 0", s, wire.StateFile)
	}
	if got := c.getModel("a", a); got.Generation != 2 {
		t.Errorf("get a after a restart: got %+v, want Generation 2", got)
	}
	w.file("b", 3, 1001)
	c.call(wire.CodeChanged, wire.Request{Op: wire.OpGet, Name: "b"})
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	c.call(wire.CodeChanged, wire.Request{Op: wire.OpGet, Name: "b"})
	if s := c.stat("b"); s.State != wire.StateFile {
		t.Errorf("model b, whose file was removed: got %+v, want State %v", s, wire.StateFile)
	}
}

func TestIndex(t *testing.T) {
	w := serve(t)
	c := w.client()
	one, two := w.file("one", 1, 100, 200), w.file("two", 2, 70_000)
	_ = two
	index := w.write("m.safetensors.index.json", []byte(`{"metadata":{},"weight_map":{"tt":"one","t":"two"}}`))
	c.putFile("", "m", index)
	sum := sha256.Sum256(must(os.ReadFile(index)))
	if s := c.stat("m"); s.SHA256 != hex.EncodeToString(sum[:]) || s.Tensors != 2 {
		t.Errorf("model m: got %+v, want Tensors 2 and the SHA256 %x", s, sum)
	}
	text := c.read("m")
	h, err := safetensors.Read(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	whole := must(os.ReadFile(one))
	if len(h.Tensors) != 2 || h.Tensors[0].Name != "tt" || !bytes.Equal(text[h.Bytes:h.Bytes+200], whole[len(whole)-200:]) {
		t.Errorf("content of m: got the header %+v, want two tensors, first tt with the bytes of its shard", h)
	}
	c.putFile("", "m", index)
	if s := c.stat("m"); s.Loads != 1 {
		t.Errorf("model m after the same index was put again: got %+v, want Loads 1", s)
	}
	w.file("two", 3, 70_000)
	c.putFile("", "m", index)
	if s := c.stat("m"); s.Generation != 2 {
		t.Errorf("model m after a put with another shard: got %+v, want Generation 2", s)
	}
	for what, text := range map[string]string{
		"a shard that is not there":     `{"weight_map":{"t":"three"}}`,
		"a tensor that is not there":    `{"weight_map":{"ttt":"one"}}`,
		"a shard in another folder":     `{"weight_map":{"t":"../` + filepath.Base(w.dir) + `/one"}}`,
		"a shard that is a folder":      `{"weight_map":{"t":"sub"}}`,
		"a shard that is no safetensor": `{"weight_map":{"t":"m.safetensors.index.json"}}`,
		"no index":                      `{}`,
	} {
		t.Run(what, func(t *testing.T) {
			c.putFile(wire.CodeInvalidFile, "x", w.write("sub/x.safetensors.index.json", []byte(text)))
		})
	}
	// A file passed by a container has no path, so the daemon cannot find the shards.
	f, err := os.Open(index)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w.client("blue").call(wire.CodeInvalidFile, wire.Request{Op: wire.OpPut, Name: "y"}, f)
}

func TestList(t *testing.T) {
	w := serve(t)
	path := w.file("a", 1, 10)
	want := map[string]bool{}
	long := strings.Repeat("n", 240)
	for i := range 300 {
		name := long + string(rune('a'+i%26)) + string(rune('a'+i/26))
		w.catalogue.records["default/"+name] = wire.Record{Tenant: "default", Name: name, Generation: 1, Files: []wire.File{{Path: path}}}
		want[name] = true
	}
	w.stop()
	w.start()
	c := w.client()
	for _, s := range c.list("") {
		if !want[s.Name] || s.State != wire.StateFile {
			t.Errorf("listed model: got %+v, want each stored model once, in State %v", s, wire.StateFile)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("models missing from the list: got %d, want 0", len(want))
	}
	a, _ := c.call("", wire.Request{Op: wire.OpList})
	if text, err := json.Marshal(a); err != nil || len(text) > wire.MaxAnswer || a.More == nil || !*a.More {
		t.Errorf("first page of the list: got %d bytes and the error %v, want at most %d bytes and More true", len(text), err, wire.MaxAnswer)
	}
}

// TestListOfLongID checks that a page of the list never exceeds the limit on answers, whatever the length of
// the ID that it repeats. A model with the longest path fits in a page.
func TestListOfLongID(t *testing.T) {
	w := serve(t)
	const many = 30
	for i := range many {
		name := fmt.Sprintf("m%02d", i)
		w.catalogue.records["default/"+name] = wire.Record{Tenant: "default", Name: name, Generation: 1, Files: []wire.File{{Path: "/" + strings.Repeat("<\x01", 2047)}}}
	}
	w.stop()
	w.start()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: w.cfg.Socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	id := `"` + strings.Repeat("<", wire.MaxRequest-100) + `"`
	page := wire.Answer{}
	for next := 0; next < many; next += len(page.Models) {
		if _, err := fmt.Fprintf(conn, `{"op":"ls","after":"m%02d","id":%s}`, next-1, id); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2*wire.MaxAnswer)
		n, err := conn.Read(buf)
		page = wire.Answer{}
		if err := errors.Join(err, json.Unmarshal(buf[:n], &page)); err != nil {
			t.Fatal(err)
		}
		if n > wire.MaxAnswer || string(page.ID) != id || len(page.Models) == 0 || page.Models[0].Name != fmt.Sprintf("m%02d", next) || *page.More != (next+len(page.Models) < many) {
			t.Fatalf("page from model %d on: got %d bytes, %d models and More %v; want at most %d bytes, the ID of the request, models from m%02d on, and More until the last", next, n, len(page.Models), *page.More, wire.MaxAnswer, next)
		}
	}
}
