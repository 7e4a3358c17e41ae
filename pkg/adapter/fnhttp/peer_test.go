package fnhttp_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// expectRefusal invokes an instance and expects an error with the given reason, without any request.
func expectRefusal(t *testing.T, h instance.Handle, reason string) {
	t.Helper()
	client := fnhttp.NewClient()
	defer client.Close()
	answer, err := client.Invoke(t.Context(), &instance.Record{ID: "f-0", Function: "f", Handle: h}, ports.Call{Body: strings.NewReader("secret")})
	if err == nil {
		_ = answer.Body.Close()
		t.Fatalf("call: got the answer %s, want the error %q", answer.Status, reason)
	}
	var failed *ports.CallError
	if !errors.As(err, &failed) || failed.Progress != ports.NotConnected || !strings.Contains(err.Error(), reason) {
		t.Errorf("refused call: got the error %v, want %q with the progress %v", err, reason, ports.NotConnected)
	}
}

// The new listener on the port of an ended instance receives no request.
func TestPortOfEndedInstance(t *testing.T) {
	var heard atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard.Add(1) }))
	defer server.Close()
	self, err := procfs.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h := instance.Handle{Runtime: instance.Process, PID: self.PID, StartTime: self.Start - 1, Address: server.Listener.Addr().String()}
	expectRefusal(t, h, "has ended")
	if heard.Load() != 0 {
		t.Error("listener on the port of an ended instance: got a request, want none")
	}
	h.StartTime = self.Start
	client := fnhttp.NewClient()
	defer client.Close()
	answer, err := client.Invoke(t.Context(), &instance.Record{ID: "f-0", Handle: h}, ports.Call{})
	if err != nil {
		t.Fatalf("call of a running instance: %v", err)
	}
	_ = answer.Body.Close()
}

// A lack of descriptors, for a connection or for checking the listener, does not count as
// the end of the instance.
func TestNoDescriptors(t *testing.T) {
	self, err := procfs.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		handle instance.Handle
		left   uint64 // descriptors
	}{
		{"to connect", instance.Handle{}, 0},
		{"to look at a process", instance.Handle{Runtime: instance.Process, PID: self.PID, StartTime: self.Start}, 1},
		{"to look at a socket", instance.Handle{Runtime: instance.Docker, Container: "c"}, 1},
	} {
		// Use a separate server: the previous server's connections could free descriptors
		// at any time.
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		c.handle.Address = server.Listener.Addr().String()
		client := fnhttp.NewClient()
		invoke := func() error {
			answer, err := client.Invoke(t.Context(), &instance.Record{ID: "f-0", Function: "f", Handle: c.handle}, ports.Call{})
			if err == nil {
				err = answer.Body.Close()
			}
			return err
		}
		restore := limitDescriptors(t, c.left)
		err := invoke()
		restore()
		var failed *ports.CallError
		if !errors.As(err, &failed) || failed.Progress != ports.NotTried || !errors.Is(err, syscall.EMFILE) {
			t.Errorf("without free descriptors %s: got the error %v, want %v with the progress %v", c.name, err, syscall.EMFILE, ports.NotTried)
		}
		if err := invoke(); err != nil {
			t.Errorf("with descriptors again, after none was free %s: %v", c.name, err)
		}
		client.Close()
		server.Close()
	}
}

// limitDescriptors lets this process open only n more descriptors until restore is called.
func limitDescriptors(t *testing.T, n uint64) (restore func()) {
	t.Helper()
	var usual unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
		t.Fatal(err)
	}
	next, err := os.Open(os.DevNull) // it gets the lowest free number
	if err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: uint64(next.Fd()) + n, Max: usual.Max}
	_ = next.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
			t.Fatal(err)
		}
	}
}

// Another user's program receives no request either, whether the instance is running or
// not, and does not count as ready.
func TestPortOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be another user too")
	}
	dir := t.TempDir()
	program := dir + "/listen"
	instancetest.Compile(t, program, []byte(`#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
/* Prints the port it listens on, then what anybody sends. */
int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof at;
	char text[4096];
	int l = socket(AF_INET, SOCK_STREAM, 0), c;
	if (bind(l, (void *)&at, size) || listen(l, 8) || getsockname(l, (void *)&at, &size))
		return 1;
	printf("%d\n", ntohs(at.sin_port));
	fflush(stdout);
	while ((c = accept(l, 0, 0)) >= 0) {
		ssize_t n;
		while ((n = read(c, text, sizeof text)) > 0)
			if (write(1, text, n) < 0)
				return 1;
		close(c);
	}
	return 1;
}`))
	for _, path := range []string{filepath.Dir(dir), dir, program} { // for the other user
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64999, Gid: 64999}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 4096)
	n, err := out.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strings.TrimSpace(string(text[:n])))
	self, err := procfs.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const why = "a program of user 64999 listens"
	expectRefusal(t, instance.Handle{Runtime: instance.Process, PID: self.PID, StartTime: self.Start, Address: address}, why)
	expectRefusal(t, instance.Handle{Runtime: instance.Docker, Container: "c", Address: address}, why)
	end := time.Now().Add(100 * time.Millisecond)
	_, err = fnhttp.WaitReady(t.Context(), address, function.Function{}, func(ctx context.Context) error {
		if time.Now().After(end) {
			return errors.New("given up")
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("WaitReady at a port of another user: got the error %v, want one that it was given up", err)
	}
	_ = cmd.Process.Kill()
	if n, _ := out.Read(text); n > 0 {
		t.Errorf("request to another user's program: got %q, want none", text[:n])
	}
	_ = cmd.Wait()
}
