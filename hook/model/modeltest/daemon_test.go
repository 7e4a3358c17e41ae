// Package modeltest runs programs of the model client, in C and in Python, against a
// daemon whose answers each test defines, on the simulated GPU.
package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/gpu"
	port "github.com/gfaas/gfaas/pkg/gpu/device"
)

// patience bounds every wait.
const patience = 60 * time.Second

// build is the folder that make builds into.
var build = func() string {
	dir, err := filepath.Abs("../../../build")
	if err != nil {
		panic(err)
	}
	return dir
}()

// device is the simulated GPU on which the daemons of all tests work, and simDir its
// folder.
var (
	device port.Device
	simDir string
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("/dev/shm", "gfaas-modeltest-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		simDir = dir
		if err := errors.Join(os.Setenv("GFAAS_SIM_DIR", dir), os.Setenv("GFAAS_SIM_GPU", "mem=512MiB,poison=1")); err != nil {
			panic(err)
		}
		if device, err = cuda.Open(filepath.Join(build, "lib/sim", cuda.Library), gpu.Device{Simulated: true}); err != nil {
			fmt.Fprintln(os.Stderr, err, "(run make first)")
			return 1
		}
		defer device.Close()
		return m.Run()
	}())
}

// request is the request of a client: its object, and its descriptor.
type request struct {
	object map[string]any
	file   *os.File // nil: none
}

// answer is one packet to a client.
type answer struct {
	text  string
	files []*os.File
	hang  bool // end the connection instead
}

// daemon answers requests on its own socket.
type daemon struct {
	t      testing.TB
	path   string
	answer func(request) answer

	mu          sync.Mutex
	connections int
}

func serve(t testing.TB, respond func(request) answer) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "gm") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, path: filepath.Join(dir, "model.sock"), answer: respond}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: d.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serving.Go(func() { d.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait(); os.RemoveAll(dir) })
	return d
}

func (d *daemon) count(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections += n
}

// held returns the number of open connections.
func (d *daemon) held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.connections
}

func (d *daemon) serve(c *net.UnixConn) {
	d.count(1)
	defer d.count(-1)
	defer c.Close()
	for {
		text, control := make([]byte, 8<<10), make([]byte, 1<<10)
		n, nc, _, _, err := c.ReadMsgUnix(text, control)
		if err != nil || n == 0 {
			return
		}
		r := request{file: received(d.t, control[:nc])}
		if err := json.Unmarshal(text[:n], &r.object); err != nil {
			d.t.Errorf("request %q: %v, want JSON", text[:n], err)
			return
		}
		a := d.answer(r)
		if r.file != nil {
			r.file.Close()
		}
		if a.hang {
			return
		}
		if d.send(c, a) != nil {
			return
		}
	}
}

// send holds the lock, so that a caller of held may then close the files that were
// sent.
func (d *daemon) send(c *net.UnixConn, a answer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var fds []int
	for _, f := range a.files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err := c.WriteMsgUnix([]byte(a.text), unix.UnixRights(fds...), nil)
	return err
}

// received returns the descriptor in a control message, or nil if there is none.
func received(t testing.TB, control []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		t.Error(err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil || len(fds) != 1 {
			t.Errorf("descriptors of a request: got %v, %v; want one", fds, err)
			continue
		}
		return os.NewFile(uintptr(fds[0]), "sent")
	}
	return nil
}

// memfd returns a file in memory with the text and the seals.
func memfd(t testing.TB, text string, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("manifest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "manifest")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

const allSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// store puts bytes on the GPU. The bytes after them are undefined.
func store(t testing.TB, bytes []byte) (exported *os.File, size gpu.Bytes) {
	t.Helper()
	m, err := device.Alloc(gpu.Bytes(max(len(bytes), 1)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := device.Stage(gpu.Bytes(max(len(bytes), 1)))
	if err != nil {
		t.Fatal(err)
	}
	copy(s.Buffer(), bytes)
	if err := errors.Join(s.Up(m, 0, len(bytes)), s.Wait(), s.Free()); err != nil {
		t.Fatal(err)
	}
	f, err := m.Export()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), m.Free()); err != nil {
			t.Error(err)
		}
	})
	return f, m.Size()
}

const sha = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// model returns the answer that passes memory with that manifest to the client.
func model(t testing.TB, manifest string, bytes []byte) answer {
	t.Helper()
	memory, size := store(t, bytes)
	return answer{
		text: fmt.Sprintf(`{"ok":true,"name":"m","generation":3,"sha256":"%s","gpu":"%s","size":%d,"new":[{"key":null}]}`,
			sha, device.UUID(), int64(size)),
		files: []*os.File{memory, memfd(t, manifest, allSeals)},
	}
}

// always returns a function that gives the same answer every time.
func always(a answer) func(request) answer { return func(request) answer { return a } }
