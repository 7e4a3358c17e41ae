package tokend

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/wire"
)

// fake serves a control socket with a handler.
func fake(t *testing.T, handler http.HandlerFunc) *Client {
	dir, err := os.MkdirTemp("", "tokend")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); _ = os.RemoveAll(dir) })
	return Dial(dir)
}

func TestRequests(t *testing.T) {
	reg := wire.Registration{
		Instance: "a", Secret: "s",
		Allocation: wire.Allocation{GPU: "sim", SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, MemLimit: 1 << 30},
	}
	var seen []string
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path)
		switch r.Method {
		case http.MethodGet:
			_ = json.NewEncoder(w).Encode(wire.Status{WindowMS: 100, Policy: "multi-token"})
		case http.MethodPost:
			var got wire.Registration
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil || !reflect.DeepEqual(got, reg) {
				t.Errorf("got %+v, %v; want %v", got, err, reg)
			}
			_ = json.NewEncoder(w).Encode(wire.Registered{MPSPipeDir: "/pipes"})
		case http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	ctx := context.Background()
	if got, err := c.Register(ctx, reg); err != nil || got.MPSPipeDir != "/pipes" {
		t.Errorf("Register: got %+v, %v; want the pipe folder /pipes", got, err)
	}
	if err := c.Unregister(ctx, "a"); err != nil {
		t.Error(err)
	}
	if s, err := c.Status(ctx); err != nil || s.WindowMS != 100 {
		t.Errorf("Status: got %+v, %v; want windows of 100 ms", s, err)
	}
	if got := strings.Join(seen, ", "); got != "POST /v1/instances, DELETE /v1/instances/a, GET /v1/status" {
		t.Errorf("requests: got %s, want a registration, a removal and a status", got)
	}
}

func TestErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		status      int
		body        string
		want        string
		unavailable bool
	}{
		"refused":  {409, `{"message":"the name a is in use by the instance of process 7"}`, "register a: the name a is in use by the instance of process 7", false},
		"no words": {500, `oops`, "500 Internal Server Error", false},
		"leaving":  {503, `{"message":"shutting down"}`, "shutting down", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			})
			_, err := c.Register(context.Background(), wire.Registration{Instance: "a"})
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), tt.want) || e.Unavailable() != tt.unavailable {
				t.Errorf("Register: got the error %v, want %q with Unavailable %v", err, tt.want, tt.unavailable)
			}
		})
	}
}

func TestUnregisterUnknown(t *testing.T) {
	c := fake(t, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	if err := c.Unpark(context.Background(), "a"); err != nil {
		t.Error(err)
	}
	if err := c.Unregister(context.Background(), "a"); err != nil {
		t.Error(err)
	}
}

func TestNoDaemon(t *testing.T) {
	_, err := Dial(filepath.Join(t.TempDir(), "none")).Status(context.Background())
	if !ports.Unavailable(err) || ports.Hint(err) == "" {
		t.Errorf("Status without a daemon: got the error %v, want one that is Unavailable and has a hint", err)
	}
}

func TestCancelledRequest(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	c := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	})
	if _, err := c.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Status that was given up: got the error %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestEnsureWithoutProgram(t *testing.T) {
	t.Setenv("PATH", "")
	_, _, err := Ensure(context.Background(), t.TempDir())
	if !ports.Unavailable(err) || !strings.Contains(err.Error(), "gfaas-tokend") {
		t.Errorf("Ensure without a program: got the error %v, want one that names gfaas-tokend", err)
	}
}

// TestDaemonEnv checks that a started daemon gets the run directory and no setting that is
// meant for its caller.
func TestDaemonEnv(t *testing.T) {
	env := []string{"HOME=/h", "GFAAS_LISTEN=:8080", "GFAAS_SOCKET=s", "LD_PRELOAD=l", "GFAAS_RUN_DIR=/other", "GFAAS_ROUND=1ms"}
	want := []string{"HOME=/h", "GFAAS_ROUND=1ms", "GFAAS_RUN_DIR=/run"}
	if got := daemonEnv(env, "/run"); !slices.Equal(got, want) {
		t.Errorf("daemonEnv(%q) = %q, want %q", env, got, want)
	}
}

func TestEnsureProgramThatFails(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\necho 'no luck today' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "gfaas-tokend"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	_, _, err := Ensure(context.Background(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "no luck today") {
		t.Errorf("Ensure with a program that fails: got the error %v, want the program's message", err)
	}
}

// Repeated starts of the daemon do not fill the memory that holds run directories.
func TestLogIsBounded(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\nhead -c 1000000 /dev/zero >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "gfaas-tokend"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for range 5 {
		if _, _, err := Ensure(context.Background(), dir); err == nil {
			t.Fatal("started, want it to fail")
		}
	}
	logs, err := filepath.Glob(filepath.Join(dir, "tokend.log*"))
	if err != nil || len(logs) != 2 {
		t.Fatalf("logs %v, %v; want the last and the one before", logs, err)
	}
	for _, path := range logs {
		if info, err := os.Stat(path); err != nil || info.Size() > MaxLog+1_000_000 {
			t.Errorf("size of %s: got %d, %v; want at most %d", path, info.Size(), err, MaxLog+1_000_000)
		}
	}
}

// Another user's run directory is refused, and no daemon is started in it.
func TestForeignRunDir(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0)); err != nil {
		t.Fatal(err)
	}
	asNobody(t)
	_, _, err := Ensure(context.Background(), dir)
	if !ports.Unavailable(err) || ports.Hint(err) != owndir.Hint || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Ensure in a directory without access: got the error %v, want %v with the hint %q", err, fs.ErrPermission, owndir.Hint)
	}
	if err := CheckRunDir(filepath.Join(dir, "run")); !ports.Unavailable(err) || ports.Hint(err) != owndir.Hint {
		t.Errorf("a folder in it: %v", err)
	}
	denied := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}
	err = Dial(dir).unreachable(context.Background(), &url.Error{Op: "Get", Err: denied})
	if !ports.Unavailable(err) || ports.Hint(err) != owndir.Hint {
		t.Errorf("unreachable: %v", err)
	}
}

// A run directory whose path is too long for sockets is refused before any file is created
// or a daemon is started, with the same error for every operation.
func TestDeepRunDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", wire.MaxSocketPath))
	_, _, ensured := Ensure(context.Background(), dir)
	_, queried := Dial(dir).Status(context.Background())
	for what, err := range map[string]error{"check": CheckRunDir(dir), "ensure": ensured, "status": queried} {
		if !ports.Unavailable(err) || !strings.Contains(err.Error(), "too long for a socket") ||
			!strings.Contains(ports.Hint(err), "GFAAS_RUN_DIR") {
			t.Errorf("%s: got the error %v, want one about the socket's path with a hint about GFAAS_RUN_DIR", what, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("run directory: got %v, want none", err)
	}
}

// asNobody drops root's access to files from this thread until the test ends.
func asNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	runtime.LockOSThread()
	if err := unix.Setfsuid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setfsuid(0); runtime.UnlockOSThread() })
}

// After the run directory was removed, no daemon is started: it would have no
// registrations, exit, and be started again.
func TestSuperviseWithoutRegistration(t *testing.T) {
	dir := t.TempDir()
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		Dial(dir).Supervise(t.Context(), "a", time.Millisecond, func(err error) { t.Errorf("started: %v", err) })
	}()
	select {
	case <-kept:
	case <-time.After(time.Minute):
		t.Error("Supervise runs a minute after the run directory was removed, want its end")
	}
}

// In a folder that others can write to, links could redirect the starter's writes, and any
// program could answer.
func TestUnsafeRunDir(t *testing.T) {
	for name, spoil := range map[string]func(dir string) (string, error){
		"another user's": func(dir string) (string, error) { return dir, os.Chown(dir, 64999, 64999) },
		"open to all":    func(dir string) (string, error) { return dir, os.Chmod(dir, 0o777) },
		"link":           func(dir string) (string, error) { return dir + ".link", os.Symlink(dir, dir+".link") },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" && os.Geteuid() != 0 {
				t.Skip("SKIPPED: only root can make another user's folder")
			}
			t.Setenv("PATH", "") // no daemon can be found
			hint := func(dir string) string {
				if name == "another user's" {
					return "a token daemon runs there; to use that daemon, run as its user: sudo -u '#64999' gfaas run …, with GFAAS_RUN_DIR=" + dir + "; for a team, see docs/how-to/team-on-one-gpu.md"
				}
				return owndir.Hint
			}
			requested := false
			c := fake(t, func(w http.ResponseWriter, _ *http.Request) {
				requested = true
				_ = json.NewEncoder(w).Encode(wire.Status{})
			})
			dir := filepath.Dir(c.socket)
			precious := filepath.Join(t.TempDir(), "precious")
			for _, name := range []string{"tokend.start.lock", "tokend.log"} {
				if err := os.Symlink(precious, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			dir, err := spoil(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove(dir) }) // the link
			for _, answering := range []bool{true, false} {
				if !answering {
					_ = os.Remove(c.socket)
				}
				_, _, err := Ensure(t.Context(), dir)
				if !ports.Unavailable(err) || ports.Hint(err) != hint(dir) || !strings.Contains(err.Error(), dir) {
					t.Errorf("Ensure with a daemon that answers (%v): got the error %v, want one about the folder %s", answering, err, dir)
				}
				_, err = Dial(dir).Status(t.Context())
				if !ports.Unavailable(err) || ports.Hint(err) != hint(dir) || !strings.Contains(err.Error(), dir) {
					t.Errorf("Status with a daemon that answers (%v): got the error %v, want one about the folder %s", answering, err, dir)
				}
			}
			if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
				t.Errorf("the file that the links lead to holds %q, %v; want precious", text, err)
			}
			if requested {
				t.Error("the program at the socket got a request, want none")
			}
		})
	}
}

// A listener of another user at an explicit socket gets no request.
func TestDaemonOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be another user too")
	}
	socket := filepath.Join(t.TempDir(), "token.sock")
	if err := os.Chmod(filepath.Dir(socket), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(socket)), 0o755); err != nil {
		t.Fatal(err)
	}
	// Affects only this thread.
	seteuid := func(uid int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	runtime.LockOSThread()
	seteuid(64999)
	l, err := net.Listen("unix", socket)
	seteuid(0)
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	requested := false
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requested = true
		_ = json.NewEncoder(w).Encode(wire.Status{})
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	_, err = DialSocket(socket).Status(t.Context())
	if !ports.Unavailable(err) || !strings.Contains(err.Error(), "of uid 64999") || requested {
		t.Errorf("Status at a socket of another user: got the error %v, and a request was sent: %v; want an error with uid 64999 and no request", err, requested)
	}
}

// Even in the user's own folder, writing follows no link.
func TestLogIsNoLink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), LogPath(dir)); err != nil {
		t.Fatal(err)
	}
	if f, err := OpenLog(dir); err == nil {
		_ = f.Close()
		t.Error("log that is a symbolic link: got no error, want one")
	}
}

// Register sends a running daemon a single request, even if the daemon is shutting down.
func TestStartingSendsOneRequest(t *testing.T) {
	var seen []string
	fake := fake(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path)
		_ = json.NewEncoder(w).Encode(wire.Registered{})
	})
	c, err := Starting(fake.runDir, func() { t.Error("a daemon was started") })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(t.Context(), wire.Registration{Instance: "a"}); err != nil {
		t.Error(err)
	}
	if err := c.Release(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if got := strings.Join(seen, ", "); got != "POST /v1/instances, DELETE /v1/instances/a/owner" {
		t.Errorf("requests: got %s, want a registration, then the removal of its owner", got)
	}
}

// A daemon that hangs is detected. Here, no other daemon can be started in its place.
func TestStartingWithHungDaemon(t *testing.T) {
	t.Setenv("PATH", "")
	stop := make(chan struct{})
	defer close(stop)
	fake := fake(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	})
	c, err := Starting(fake.runDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Register(t.Context(), wire.Registration{Instance: "a"})
	if !ports.Unavailable(err) || !strings.Contains(err.Error(), "gfaas-tokend") {
		t.Errorf("Register with a daemon that hangs: got the error %v, want one that names gfaas-tokend", err)
	}
}
