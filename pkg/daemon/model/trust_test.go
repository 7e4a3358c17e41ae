package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/safetensors"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// callWithFile sends a request with a file.
func (c *client) callWithFile(code string, r wire.Request, path string) (wire.Answer, []*os.File) {
	c.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	return c.call(code, r, f)
}

// TestPublicIsNotWrittenByOthers checks that a file of one tenant never becomes the model that other tenants
// get under its name. This holds even for a public model that was evicted and has no file to load it from.
func TestPublicIsNotWrittenByOthers(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.Models = t.TempDir() })
	blue, own := w.client("blue"), w.client("default")
	shown, mine, big := w.file("shown", 1, 1000), w.file("mine", 2, 1000), w.file("big", 3, 4<<20-1000)
	blue.callWithFile("", wire.Request{Op: wire.OpPut, Name: "m", Public: true}, shown)
	a, files := own.callWithFile("", wire.Request{Op: wire.OpGet, Name: "m"}, mine) // gets the public model instead
	own.check(a, files, shown)
	own.release("m")
	w.client().putFile("", "big", big) // evicts m
	if s := blue.stat("m"); s.State != wire.StateFile {
		t.Fatalf("blue's model m after its eviction: got %+v, want State %v", s, wire.StateFile)
	}
	w.client("default").call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "m"})
	a, files = own.callWithFile("", wire.Request{Op: wire.OpGet, Name: "m"}, mine)
	own.check(a, files, mine)
	if s := blue.stat("m"); s.State != wire.StateFile || s.Generation != 1 || s.Tenant != "blue" {
		t.Errorf("blue's model m: got %+v; want State %v, Generation 1, Tenant blue", s, wire.StateFile)
	}
	blue.call(wire.CodeAbsent, wire.Request{Op: wire.OpGet, Name: "m"})
	if s := own.stat("m"); s.Tenant != "default" || s.State != wire.StateGPU || s.Public {
		t.Errorf("default's model m: got %+v; want Tenant default, State %v, Public false", s, wire.StateGPU)
	}
	a, files = blue.callWithFile("", wire.Request{Op: wire.OpGet, Name: "m"}, shown)
	blue.check(a, files, shown)
	// The same holds for a file in the folder of models.
	own.call("", wire.Request{Op: wire.OpRemove, Name: "m"})
	own.release("m")
	blue.release("m")
	w.client().putFile("", "big", big)
	text, err := os.ReadFile(mine)
	if err := errors.Join(err, os.WriteFile(filepath.Join(w.cfg.Models, "m.safetensors"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	a, files = own.call("", wire.Request{Op: wire.OpGet, Name: "m"})
	own.check(a, files, mine)
	if s := blue.stat("m"); s.Tenant != "blue" || s.Generation != 1 {
		t.Errorf("blue's model m: got %+v, want Tenant blue and Generation 1", s)
	}
}

// TestDeadClientsHoldNothing checks that memory of a client that has ended is free for the next request,
// however soon it arrives.
func TestDeadClientsHoldNothing(t *testing.T) {
	w := serve(t)
	files := []string{w.file("m0", 1, 3<<20), w.file("m1", 2, 3<<20)} // only one of them fits
	requester := w.client()
	for n := range 300 {
		name := fmt.Sprint("m", n%2)
		holder := w.client()
		holder.callWithFile("", wire.Request{Op: wire.OpGet, Name: name}, files[n%2])
		if err := holder.Close(); err != nil {
			t.Fatal(err)
		}
		requester.callWithFile("", wire.Request{Op: wire.OpGet, Name: fmt.Sprint("m", 1-n%2)}, files[1-n%2])
		requester.release(fmt.Sprint("m", 1-n%2))
	}
	// The same holds for a killed process.
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
	requester.callWithFile("", wire.Request{Op: wire.OpGet, Name: "m0"}, files[0])
	requester.call("", wire.Request{Op: wire.OpHold, Name: "m0"}, of)
	requester.callWithFile(wire.CodeBusy, wire.Request{Op: wire.OpGet, Name: "m1"}, files[1])
	_ = process.Process.Kill()
	_ = process.Wait()
	requester.callWithFile("", wire.Request{Op: wire.OpGet, Name: "m1"}, files[1])
}

// TestStoreIsBlank checks that memory that a client may write to contains no data of other models.
func TestStoreIsBlank(t *testing.T) {
	w := serve(t)
	manifest := w.write("manifest", []byte(`{"tensors":{"a":{"dtype":"U8","shape":[300000],"offset":0,"bytes":300000}},"metadata":{}}`))
	a, files := w.client("blue").callWithFile("", wire.Request{Op: wire.OpStore, Name: "s", Size: 300_000}, manifest)
	if found := bytes.Trim(w.client().memory(files[0], a.Size), "\x00"); len(found) > 0 {
		t.Errorf("memory of a new store of %d bytes: got other bytes than zeros in a range of %d", a.Size, len(found))
	}
}

// TestPutAgain checks that after a put from another file, or from the same file with a new mtime, later loads
// use that file.
func TestPutAgain(t *testing.T) {
	w := serve(t)
	c := w.client()
	path := w.file("a", 1, 1000)
	c.putFile("", "a", path)
	if err := os.Chtimes(path, time.Now(), time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	c.putFile("", "a", path)
	if s := c.stat("a"); s.Generation != 1 || s.Loads != 1 {
		t.Errorf("model a after a put of the same content: got %+v, want Generation 1 and Loads 1", s)
	}
	c.putFile("", "big", w.file("big", 3, 4<<20-1000))
	c.getModel("a", path)
	w.stop()
	w.start()
	w.client().getModel("a", path)
}

// TestSparseFiles loads sparse files, which can be larger than the capacity, and whose sizes can overflow
// sums.
func TestSparseFiles(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "holes")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := serve(t)
	w.dir = dir
	shard := func(name string, bytes int64) string {
		header := fmt.Appendf(nil, `{"%s":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, name, bytes, bytes)
		path := w.write(name+".safetensors", append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...))
		if err := os.Truncate(path, int64(8+len(header))+bytes); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := w.client()
	c.putFile(wire.CodeCapacity, "a", shard("a", 1<<40))
	c.putFile(wire.CodeCapacity, "b", shard("b", 1<<62))
	c.putFile(wire.CodeCapacity, "c", shard("c", 1<<63-1000))
	c.putFile(wire.CodeCapacity, "d", w.write("d.safetensors.index.json", []byte(`{"weight_map":{"a":"./a.safetensors","b":"b.safetensors","c":"c.safetensors"}}`)))
	if all := c.list(""); len(all) != 0 || w.gpu.Used() != 0 {
		t.Errorf("after refused files: got the models %+v and %v of GPU memory, want neither", all, w.gpu.Used())
	}
}

// long writes a model with one byte of data and a header of the given size.
func (w *world) long(name string, n gpu.Bytes) string {
	w.t.Helper()
	tensor := safetensors.Tensor{Name: "t", DType: "U8", Shape: []int64{1}, Bytes: 1}
	text, err := safetensors.AppendHeader(nil, []safetensors.Tensor{tensor}, map[string]string{"k": strings.Repeat("x", int(n))})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.write(name, append(text, 1))
}

// live returns how much of Go's heap is in use. The second collection frees the contents of pools.
func live() gpu.Bytes {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return gpu.Bytes(m.HeapAlloc)
}

// TestWaitingLoadsKeepNoHeaders checks that loads that wait for room keep no headers in memory, however long
// these are.
func TestWaitingLoadsKeepNoHeaders(t *testing.T) {
	w := serve(t)
	full, long := w.file("full", 1, 4<<20-1000), w.long("long", 2*gpu.MiB)
	holder, host := w.client("blue"), w.client()
	holder.callWithFile("", wire.Request{Op: wire.OpGet, Name: "full"}, full)
	before := live()
	const many = 10
	var callers sync.WaitGroup
	for n := range many {
		c := w.client("blue")
		callers.Go(func() {
			_, files := c.callWithFile("", wire.Request{Op: wire.OpGet, Name: fmt.Sprint("m", n), TimeoutMS: time.Hour.Milliseconds()}, long)
			for _, f := range files {
				_ = f.Close()
			}
		})
	}
	w.eventually("all loads wait for room", func() bool {
		waiting := 0
		for _, s := range host.list("") {
			if strings.HasPrefix(s.Why, "no-") {
				waiting++
			}
		}
		return waiting == many
	})
	if more := live() - before; more > 4*gpu.MiB {
		t.Errorf("growth of the heap with %d waiting loads: got %v, want at most %v", many, more, 4*gpu.MiB)
	}
	holder.release("full")
	callers.Wait()
	if s := holder.stat("m0"); s.State != wire.StateGPU || s.Tensors != 1 {
		t.Errorf("model m0: got %+v, want State %v and Tensors 1", s, wire.StateGPU)
	}
}

// manifests returns how many manifest files this process has open.
func manifests(t *testing.T) (n int) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "gfaas-manifest") {
			n++
		}
	}
	return n
}

// TestWaitingStores checks that a store that waits for room keeps no manifest in memory. When there is room,
// the daemon reads the client's manifest again.
func TestWaitingStores(t *testing.T) {
	w := serve(t)
	full := w.file("full", 1, 4<<20-1000)
	write := func(name, text string) string { return w.write(name, []byte(text)) }
	const good = `{"tensors":{"a":{"dtype":"U8","shape":[8],"offset":256,"bytes":8}}}`
	unchanged, changing := write("stays", good), write("turns", good)
	host := w.client()
	host.putFile("", "full", full)
	before := manifests(t)
	_, files := host.call("", wire.Request{Op: wire.OpGet, Name: "full"})
	for _, f := range files {
		_ = f.Close()
	}
	var callers sync.WaitGroup
	const many = 10
	for n := range many {
		c := w.client("blue")
		callers.Go(func() {
			a, files := c.callWithFile("", wire.Request{Op: wire.OpStore, Name: fmt.Sprint("m", n), Size: 1000, TimeoutMS: time.Hour.Milliseconds()}, unchanged)
			if places, _, err := wire.ParseManifest(files[1], a.Size); err != nil || len(places) != 1 || places[0].Offset != 256 {
				t.Errorf("manifest of the store m%d: got the tensors %+v and the error %v, want one tensor at 256", n, places, err)
			}
			for _, f := range files {
				_ = f.Close()
			}
		})
	}
	c := w.client("blue")
	callers.Go(func() {
		c.callWithFile(wire.CodeInvalidFile, wire.Request{Op: wire.OpStore, Name: "turns", Size: 1000, TimeoutMS: time.Hour.Milliseconds()}, changing)
	})
	w.eventually("all stores wait for room", func() bool { return len(host.list("")) == 1+many+1 })
	// The manifest of the get's answer may still be open.
	w.eventually("no manifest is open for waiting stores", func() bool { return manifests(t) == before })
	write("turns", `{"tensors":{"a":{"dtype":"U8","shape":[8],"offset":4096,"bytes":8}}}`) // beyond the end of the store
	host.release("full")
	callers.Wait()
	if s := host.list("")[0]; s.Name != "full" || s.State != wire.StateFile {
		t.Errorf("first model of the list: got %+v, want Name full and State %v", s, wire.StateFile)
	}
}

// TestManifestsAtOnce checks that only a few manifests are parsed at a time, and none that is longer than a
// header may be.
func TestManifestsAtOnce(t *testing.T) {
	w := serve(t)
	path := w.write("text", bytes.Repeat([]byte("x"), 16<<20))
	const many = 20
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	peak, stop := live(), make(chan bool)
	begun := peak
	var measuring, callers sync.WaitGroup
	measuring.Go(func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, gpu.Bytes(m.HeapInuse))
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	for range many {
		c := w.client("blue")
		callers.Go(func() {
			c.callWithFile(wire.CodeInvalidFile, wire.Request{Op: wire.OpStore, Name: "m", Size: 1000}, path)
		})
	}
	callers.Wait()
	close(stop)
	measuring.Wait()
	if more := peak - begun; more > 176*gpu.MiB {
		t.Errorf("growth of the heap with %d manifests of 16 MiB: got %v, want at most %v", many, more, 176*gpu.MiB)
	}
	if err := os.Truncate(path, 100_000_001); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, _, err = w.client("blue").Call(t.Context(), wire.Request{Op: wire.OpStore, Name: "m", Size: 1000}, f)
	if err == nil || !strings.Contains(err.Error(), "100000001 bytes, expected at most 100000000") {
		t.Errorf("store with a manifest that is too long: got %v, want an error with the limit", err)
	}
}

// TestStall checks that a file system that does not answer makes its own load fail in time. Nothing remains
// of the load, and later loads of the file succeed.
func TestStall(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.Stall = 50 * time.Millisecond })
	path := w.file("a", 1, 1<<20)
	resume := make(chan bool)
	var once sync.Once
	w.gpu.Fail(func(call string) error {
		if call == "stage" { // in the goroutine that reads
			once.Do(func() { <-resume })
		}
		return nil
	})
	c := w.client()
	c.putFile(wire.CodeInternal, "a", path)
	w.checkEmpty()
	close(resume)
	w.gpu.Fail(nil)
	w.eventually("the model is loaded", func() bool {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, _, err = c.Call(t.Context(), wire.Request{Op: wire.OpPut, Name: "a", Source: path}, f)
		return err == nil
	})
	c.getModel("a", path)
}

// TestStallOfOneTenant checks that any number of hanging loads of one tenant does not block loads of other
// tenants.
func TestStallOfOneTenant(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.Staging = 64 * gpu.MiB })
	path := w.file("a", 1, 1000)
	answer := make(chan bool)
	var hung atomic.Int32
	w.gpu.Fail(func(call string) error {
		if call == "stage" && hung.Add(1) <= 2 { // in the goroutine that reads
			<-answer
		}
		return nil
	})
	defer func() { // so that the readers end before the daemon
		close(answer)
		w.gpu.Fail(nil)
		w.stop()
	}()
	for n := range 4 {
		c := w.client("blue")
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		go func() { _, _, _ = c.Call(t.Context(), wire.Request{Op: wire.OpPut, Name: fmt.Sprint("m", n)}, f) }()
	}
	w.eventually("two loads of the tenant hang", func() bool { return hung.Load() == 2 })
	done := make(chan bool)
	go func() {
		defer close(done)
		w.client().putFile("", "a", path)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Errorf("the load of another tenant has not ended after %v", patience)
	}
}

// TestHoldersAcrossARestart checks that a holder keeps its memory when the daemon dies. The next daemon loads
// one copy of its own for all clients, counts only that copy, and never hands out the old one.
func TestHoldersAcrossARestart(t *testing.T) {
	w := serve(t, func(cfg *model.Config) { cfg.Capacity = 3 * gpu.MiB })
	path := w.file("a", 1, 2<<20)
	c := w.client()
	c.putFile("", "a", path)
	a, files := c.call("", wire.Request{Op: wire.OpGet, Name: "a"})
	// A mapping keeps the memory even without the daemon, as with the real driver.
	mapped, err := w.gpu.Import(files[0], gpu.Bytes(a.Size))
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Process.Kill(); _ = process.Wait() }()
	fd, err := unix.PidfdOpen(process.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := os.NewFile(uintptr(fd), "process")
	defer of.Close()
	c.call("", wire.Request{Op: wire.OpGet, Name: "a"})
	c.call("", wire.Request{Op: wire.OpHold, Name: "a"}, of)
	w.stop()
	if used := w.gpu.Used(); used != gpu.Bytes(a.Size) {
		t.Fatalf("GPU memory of the holder after the end of the daemon: got %v, want %v", used, gpu.Bytes(a.Size))
	}
	w.start()
	after := w.client()
	if now := after.totals(); now.Used != 0 || now.Refs != 0 || now.Models != 1 {
		t.Errorf("totals of the next daemon at its start: got %+v, want Used 0, Refs 0, Models 1", now)
	}
	for range 3 {
		w.client().getModel("a", path)
	}
	if now := after.totals(); now.Used != a.Size || now.Loads != 1 || now.Refs != 3 {
		t.Errorf("totals of the next daemon after three gets: got %+v, want Used %v, Loads 1, Refs 3", now, a.Size)
	}
	if used := w.gpu.Used(); used != 2*gpu.Bytes(a.Size) {
		t.Errorf("GPU memory of the old holder's copy and the new one: got %v, want %v", used, 2*gpu.Bytes(a.Size))
	}
	after.putFile(wire.CodeBusy, "b", w.file("b", 2, 2<<20)) // the capacity is used up
	// The old holder still has its memory. After it ends, one copy remains.
	stage, err := w.gpu.Stage(mapped.Size())
	if err := errors.Join(err, stage.Down(mapped, 0, int(mapped.Size())), stage.Wait(), stage.Free()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(stage.Buffer(), text[len(text)-2<<20:]) {
		t.Errorf("memory of the old holder: got other bytes than the file's (%v)", err)
	}
	if err := mapped.Free(); err != nil {
		t.Fatal(err)
	}
	if used := w.gpu.Used(); used != gpu.Bytes(a.Size) {
		t.Errorf("GPU memory after the end of the old holder: got %v, want %v", used, gpu.Bytes(a.Size))
	}
}

// TestModelSocketRefusesOtherUsers checks that model.sock, which serves all tenants, rejects programs of
// other users, whatever its mode is. The mode of a tenant's socket determines which users can connect to it.
func TestModelSocketRefusesOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be another user")
	}
	w := serve(t)
	run := filepath.Dir(w.cfg.Socket)
	blue := filepath.Join(run, "model-blue.sock")
	if err := errors.Join(os.Chmod(run, 0o755), os.Chmod(w.cfg.Socket, 0o666), os.Chmod(blue, 0o666)); err != nil {
		t.Fatal(err)
	}
	answers := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread changes its user, and ends with this goroutine
		defer close(answers)
		if _, _, failed := unix.RawSyscall(unix.SYS_SETRESUID, 64999, 64999, 64999); failed != 0 {
			t.Errorf("change the user: %v", failed)
			return
		}
		for _, socket := range []string{w.cfg.Socket, blue} {
			conn, err := net.Dial("unixpacket", socket)
			if err == nil {
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, _ = conn.Write([]byte(`{"op":"stat"}`))
				_, err = conn.Read(make([]byte, wire.MaxAnswer))
				_ = conn.Close()
			}
			answers <- err
		}
	}()
	if err := <-answers; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("request of another user at model.sock: got %v, want a closed connection", err)
	}
	if err := <-answers; err != nil {
		t.Errorf("request of another user at model-blue.sock: %v", err)
	}
	w.client().totals() // the daemon still works
}
