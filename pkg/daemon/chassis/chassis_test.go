package chassis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience is the time limit for expected events.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runDir returns a folder whose name is short enough for sockets.
func runDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "chassis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func config(dir string) Config {
	return Config{Program: "testd", Socket: filepath.Join(dir, "test.sock"), Lock: "test.lock"}
}

// daemon is a running daemon.
type daemon struct {
	*Chassis
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

func serve(t *testing.T, cfg Config, s Service) *daemon {
	t.Helper()
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s.Run == nil {
		s.Run = func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &daemon{Chassis: c, t: t, stop: stop, done: make(chan error, 1)}
	go func() { d.done <- c.Serve(ctx, s) }()
	t.Cleanup(func() { stop(); d.end() })
	return d
}

// end waits for the daemon to end.
func (d *daemon) end() error {
	d.t.Helper()
	select {
	case err := <-d.done:
		d.done <- err
		return err
	case <-time.After(patience):
		d.t.Fatalf("the daemon has not ended after %v", patience)
		return nil
	}
}

// get sends a GET to the control socket, or to the TCP address if web is set. The status is
// 0 without an answer.
func (d *daemon) get(web bool, path string) (status int, body string) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if web {
				return (&net.Dialer{}).DialContext(ctx, "tcp", d.WebAddr().String())
			}
			return (&net.Dialer{}).DialContext(ctx, "unix", d.cfg.Socket)
		},
	}}
	answer, err := client.Get("http://testd" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func TestHealthAndMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gfaas_test"}, func() float64 { return 7 }))
	waits := errors.New("instances are adopted")
	ready, draining, drained := make(chan struct{}), make(chan struct{}), make(chan struct{})
	cfg := config(runDir(t))
	cfg.Listen = "127.0.0.1:0"
	own := http.NewServeMux()
	own.HandleFunc("GET /v1/own", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "own") })
	d := serve(t, cfg, Service{
		Control: own, Metrics: registry,
		Ready: func() error {
			select {
			case <-ready:
				return nil
			default:
				return waits
			}
		},
		Drain: func() { close(draining); <-drained },
	})
	checkStatuses := func(when string, want map[string]int) {
		t.Helper()
		for path, status := range want {
			for _, web := range []bool{false, true} {
				wanted := status
				if web && path == "/v1/own" {
					wanted = 404
				}
				if got, body := d.get(web, path); got != wanted {
					t.Errorf("%s: GET %s (over TCP: %v): got %d %s, want %d", when, path, web, got, body, wanted)
				}
			}
		}
	}
	checkStatuses("at first", map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200, "/v1/own": 200, "/v1/other": 404})
	close(ready)
	checkStatuses("ready", map[string]int{"/healthz": 200, "/readyz": 200})
	if _, text := d.get(true, "/metrics"); !strings.Contains(text, "gfaas_test 7.0") || !strings.Contains(text, "# EOF") {
		t.Errorf("GET /metrics: got %q, want OpenMetrics text with \"gfaas_test 7.0\" and \"# EOF\"", text)
	}
	d.stop()
	<-draining
	checkStatuses("draining", map[string]int{"/healthz": 200, "/readyz": 503, "/v1/own": 200})
	close(drained)
	if err := d.end(); err != nil {
		t.Error(err)
	}
	if status, _ := d.get(false, "/healthz"); status != 0 {
		t.Errorf("GET /healthz after the daemon has ended: got status %d, want no answer", status)
	}
	if remaining, err := os.ReadDir(d.RunDir()); err != nil || len(remaining) > 0 {
		t.Errorf("run directory after the end: got the files %v and the error %v, want no files", remaining, err)
	}
}

// TestOneDaemon checks that a run directory has one daemon. It removes the socket of a dead
// daemon, but no other file at its path.
func TestOneDaemon(t *testing.T) {
	cfg := config(runDir(t))
	cfg.Private = true
	if err := os.Chmod(filepath.Dir(cfg.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	d := serve(t, cfg, Service{})
	for path, mode := range map[string]os.FileMode{cfg.Socket: 0o600, d.RunDir(): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode of %s: got %v, %v, want %o", path, info, err, mode)
		}
	}
	var served *ServedError
	if _, err := Open(cfg); !errors.As(err, &served) || served.PID != os.Getpid() || !served.Locked() || served.Hint() == "" ||
		!strings.Contains(err.Error(), "another testd serves "+d.RunDir()) {
		t.Errorf("open a second daemon: got %v, want a *ServedError with the PID %d and a hint", err, os.Getpid())
	}
	if status, _ := d.get(false, "/healthz"); status != 200 {
		t.Errorf("GET /healthz of the first daemon: got status %d, want 200", status)
	}
	other := config(runDir(t))
	if err := os.WriteFile(other.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("open with a regular file at the path of the socket: got %v, want an error with \"is not a socket\"", err)
	}
	if l, err := lockfile.Acquire(filepath.Join(filepath.Dir(other.Socket), "test.lock")); err != nil {
		t.Errorf("lock the run directory after the failed open: %v", err)
	} else {
		_ = l.Close()
	}
}

// TestPathTooLongForASocket checks that Open reports a path that is too long before it
// creates the folder.
func TestPathTooLongForASocket(t *testing.T) {
	dir := filepath.Join(runDir(t), strings.Repeat("d", wire.MaxSocketPath))
	var long *ports.UnavailableError
	if _, err := Open(config(dir)); !errors.As(err, &long) || !long.Unavailable() || long.Hint() == "" {
		t.Errorf("open with a path that is too long: got %v, want a *ports.UnavailableError with a hint", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("open created the folder %s, want no folder", dir)
	}
	if _, err := Listen("unix", filepath.Join(dir, "a.sock"), 0o600); !errors.As(err, &long) {
		t.Errorf("listen at a path that is too long: got %v, want a *ports.UnavailableError", err)
	}
}

// TestOpenAwaitsEndingDaemon checks that Open waits for a daemon that holds the run
// directory without answering, since that daemon is ending.
func TestOpenAwaitsEndingDaemon(t *testing.T) {
	cfg := config(runDir(t))
	l, err := lockfile.Acquire(filepath.Join(filepath.Dir(cfg.Socket), cfg.Lock))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = l.Remove() })
	serve(t, cfg, Service{})
}

// TestOpenAwaitsLockOfKilledDaemon checks that Open waits for the lock and the socket of a
// killed daemon. A process that the daemon was starting holds both for a moment.
func TestOpenAwaitsLockOfKilledDaemon(t *testing.T) {
	cfg := config(runDir(t))
	path := filepath.Join(filepath.Dir(cfg.Socket), cfg.Lock)
	l, err := lockfile.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fmt.Appendln(nil, dead.ProcessState.Pid()), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	socket.SetUnlinkOnClose(false)
	time.AfterFunc(50*time.Millisecond, func() { _, _ = socket.Close(), l.Close() })
	serve(t, cfg, Service{})
}

func TestExitWhenIdle(t *testing.T) {
	cfg := config(runDir(t))
	cfg.ExitWhenIdle = 30 * time.Millisecond
	busy := make(chan struct{})
	last := time.Now()
	delayFirstReport := sync.OnceFunc(func() { time.Sleep(2 * cfg.ExitWhenIdle) }) // the daemon is in use, even if Use reports it late
	d := serve(t, cfg, Service{Use: func() (time.Time, bool) {
		select {
		case <-busy:
			return last, false
		default:
			last = time.Now()
			delayFirstReport()
			return last, true
		}
	}})
	select {
	case <-d.done:
		t.Fatal("the daemon ended while it was in use")
	case <-time.After(5 * cfg.ExitWhenIdle):
	}
	close(busy)
	if err := d.end(); err != nil {
		t.Error(err)
	}
}

// TestRunDirectoryRemoved checks that a daemon whose run directory was removed keeps
// running for connected clients, and removes no file of its successor.
func TestRunDirectoryRemoved(t *testing.T) {
	cfg := config(runDir(t))
	cfg.ExitWhenIdle = time.Hour
	unused := make(chan struct{})
	use := func() (time.Time, bool) {
		select {
		case <-unused:
			return time.Now(), false
		default:
			return time.Now(), true
		}
	}
	first := serve(t, cfg, Service{Use: use})
	if err := os.RemoveAll(first.RunDir()); err != nil {
		t.Fatal(err)
	}
	second := serve(t, cfg, Service{})
	close(unused)
	if err := first.end(); err != nil {
		t.Error(err)
	}
	if status, body := second.get(false, "/healthz"); status != 200 {
		t.Errorf("GET /healthz of the second daemon: got %d %s, want 200", status, body)
	}
	if !second.lock.Current() {
		t.Error("the first daemon removed the lock of the second")
	}
}

// TestEnds checks the reasons for which a daemon ends, other than its context, and the
// order of the shutdown.
func TestEnds(t *testing.T) {
	failed := errors.New("it failed")
	d := serve(t, config(runDir(t)), Service{Run: func(context.Context) error { return failed }})
	if err := d.end(); !errors.Is(err, failed) {
		t.Errorf("end of a daemon whose Run failed: got %v, want %v", err, failed)
	}
	d = serve(t, config(runDir(t)), Service{Run: func(context.Context) error { return nil }})
	if err := d.end(); err != nil {
		t.Errorf("end of a daemon whose Run returned: %v", err)
	}
	cfg := config(runDir(t))
	d = serve(t, cfg, Service{Run: func(ctx context.Context) error {
		<-ctx.Done()
		if Answers("unix", cfg.Socket) {
			t.Error("the socket accepted a connection after the context of Run was cancelled")
		}
		if _, err := lockfile.Acquire(filepath.Join(filepath.Dir(cfg.Socket), cfg.Lock)); err == nil {
			t.Error("the lock of the run directory was free before Run had returned")
		}
		return nil
	}})
	d.stop()
	if err := d.end(); err != nil {
		t.Error(err)
	}
}

// TestReload checks the effects of SIGHUP, and the notifications to systemd.
func TestReload(t *testing.T) {
	dir := runDir(t)
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	expectNotification := func(want string) {
		t.Helper()
		buf := make([]byte, 1024)
		_ = systemd.SetReadDeadline(time.Now().Add(patience))
		n, err := systemd.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), want) {
			t.Fatalf("notification to systemd: got %q, %v, want the prefix %q", buf[:n], err, want)
		}
	}
	reloads := 0
	d := serve(t, config(dir), Service{Reload: func() error {
		reloads++
		return []error{nil, errors.New("no file"), nil}[reloads]
	}})
	expectNotification("READY=1")
	for range 2 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		expectNotification("RELOADING=1\nMONOTONIC_USEC=")
		expectNotification("READY=1")
	}
	d.stop()
	expectNotification("STOPPING=1")
	if err := d.end(); err != nil || reloads != 2 {
		t.Errorf("reloads after two signals: got %d and the error %v, want 2 and no error", reloads, err)
	}
}

func TestListenerRemovesItsOwnSocketOnly(t *testing.T) {
	path := filepath.Join(runDir(t), "s")
	first, err := Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unixpacket", path, 0o600); err == nil {
		t.Error("a third listener opened the path of the second, want an error")
	}
	_ = first.Close()
	if !Answers("unixpacket", path) {
		t.Error("closing the first listener removed the socket of the second")
	}
	_ = second.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket of the second listener remains after it was closed")
	}
}

// From the first moment, and with any umask, the socket refuses other users.
func TestListenerHasItsModeFromTheStart(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(runDir(t), "s")
	l, err := bind("unix", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("new socket: got mode %v, %v; want mode %v", info.Mode(), err, fs.ModeSocket|0o600)
	}
}

// In a folder that others can write to, they could redirect a daemon's writes by links, and
// replace its sockets.
func TestUnsafeRunDirIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(dir string) (string, error){
		"another user's": func(dir string) (string, error) { return dir, os.Chown(dir, 64999, 64999) },
		"open to all":    func(dir string) (string, error) { return dir, os.Chmod(dir, 0o777) },
		"link":           func(dir string) (string, error) { return dir + ".link", os.Symlink(dir, dir+".link") },
	} {
		for _, private := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, private %v", name, private), func(t *testing.T) {
				if name == "another user's" && os.Geteuid() != 0 {
					t.Skip("SKIPPED: only root can make another user's folder")
				}
				dir, precious := runDir(t), filepath.Join(t.TempDir(), "precious")
				if err := errors.Join(os.WriteFile(precious, []byte("precious"), 0o600),
					os.Symlink(precious, filepath.Join(dir, "test.lock"))); err != nil {
					t.Fatal(err)
				}
				dir, err := spoil(dir)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.Remove(dir) }) // the link
				cfg := config(dir)
				cfg.Private = private
				c, err := Open(cfg)
				if err == nil {
					c.Close()
				}
				if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), dir) {
					t.Errorf("open: got %v, want a permission error that names %s", err, dir)
				}
				if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
					t.Errorf("content of the link's target: got %q, %v; want precious", text, err)
				}
			})
		}
	}
}

// The control socket closes connections of another user's programs, whatever its mode, and
// answers those of its own user before and after.
func TestControlSocketRefusesOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be another user")
	}
	d := serve(t, config(runDir(t)), Service{})
	if err := errors.Join(os.Chmod(d.RunDir(), 0o755), os.Chmod(d.cfg.Socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	answer := make(chan string)
	go func() {
		runtime.LockOSThread() // the thread becomes another user's and ends with the goroutine
		defer close(answer)
		if _, _, failed := unix.RawSyscall(unix.SYS_SETRESUID, 64999, 64999, 64999); failed != 0 {
			answer <- failed.Error()
			return
		}
		conn, err := net.Dial("unix", d.cfg.Socket)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: d\r\n\r\n")
		text := make([]byte, 1024)
		if n, err := conn.Read(text); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			answer <- fmt.Sprintf("%q, %v", text[:n], err)
		}
	}()
	for got := range answer {
		t.Errorf("request of another user: got %s, want a closed connection", got)
	}
	if status, body := d.get(false, "/healthz"); status != http.StatusOK {
		t.Errorf("GET /healthz of the daemon's user: got %d %s, want 200", status, body)
	}
}

// TestMetricsFormat checks that /metrics uses the format that the client requests, and
// OpenMetrics by default.
func TestMetricsFormat(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "gfaas_test_total", Help: "A counter."}))
	h := new(Chassis).handler(Service{Metrics: registry}, nil)
	const open, plain = "application/openmetrics-text; version=1.0.0", "text/plain; version=0.0.4"
	for _, c := range []struct {
		accept []string
		want   string
	}{
		{nil, open}, {[]string{""}, open}, {[]string{"*/*"}, open}, {[]string{"*/*;q=0.1, "}, open},
		{[]string{"text/plain"}, plain}, {[]string{"text/plain;version=0.0.4"}, plain}, {[]string{"TEXT/plain; q=0.5, */*;q=0.1"}, plain}, {[]string{"*/*;q=0.1", "text/plain"}, plain},
		{[]string{"text/html,application/xhtml+xml,*/*;q=0.8"}, plain}, {[]string{"text/*"}, plain},
		{[]string{open}, open}, {[]string{"application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}, open},
		{[]string{"text/plain;q=0.9,application/openmetrics-text;version=1.0.0;q=0.2"}, plain},
		{[]string{"application/openmetrics-text;version=0.0.1"}, "application/openmetrics-text; version=0.0.1"},
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header["Accept"] = c.accept
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		kind, text := w.Header().Get("Content-Type"), w.Body.String()
		if w.Code != 200 || !strings.HasPrefix(kind, c.want) || strings.HasSuffix(text, "# EOF\n") != strings.HasPrefix(c.want, "application/") || !strings.Contains(text, "\ngfaas_test_total 0") {
			t.Errorf("GET /metrics with Accept %q: got %d %s, want 200 %s\n%s", c.accept, w.Code, kind, c.want, text)
		}
	}
}
