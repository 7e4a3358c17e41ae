package token

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/lockfile"
)

// TestRegistrationWhileEnding: a registration that is on its way when the
// daemon is told to end does not keep it from that.
func TestRegistrationWhileEnding(t *testing.T) {
	s := serve(t, Config{})
	text, err := json.Marshal(reg("late", 60, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /v1/instances HTTP/1.1\r\nHost: tokend\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(text))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n') // it reads the body from now on
	if err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatal(line, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "the sockets are closed", func() bool { return !chassis.Answers("unix", s.socket) })
	_, _ = conn.Write(text)
	answer, _ := io.ReadAll(conn)
	t.Logf("answer: %q", answer)
	select {
	case err := <-stopped:
		stopped <- err
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon does not end")
	}
}

// TestRunDirectoryTakenAway: a daemon whose run directory was removed leaves
// when its last process has, and takes nothing from the one that serves in its
// place.
func TestRunDirectoryTakenAway(t *testing.T) {
	first := serve(t, Config{Socket: filepath.Join(runDir(t), "token.sock")})
	a := first.join(reg("a", 60, 1, 1))
	first.join(reg("b", 60, 1, 1)).Close()
	if err := os.RemoveAll(filepath.Dir(first.socket)); err != nil {
		t.Fatal(err)
	}
	second := serve(t, Config{Socket: first.socket})
	second.register(reg("a", 60, 1, 1))
	second.register(reg("b", 60, 1, 1))
	first.lease(a) // it goes on
	_ = first.d.locked(func() { first.d.remove("b", "a test") })
	a.Close()
	select {
	case err := <-first.ends:
		first.ends <- err
	case <-time.After(patience):
		t.Fatal("the first daemon stays, though nobody finds it")
	}
	for _, path := range []string{second.socket, second.clientSocket(), filepath.Join(second.folder("a"), "token.sock"), filepath.Join(second.folder("b"), "token.sock"), filepath.Join(filepath.Dir(second.socket), "token.lock")} {
		if _, err := os.Stat(path); err != nil {
			t.Error("the first daemon took away what is the second's:", err)
		}
	}
	c, err := second.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestLeaveBeforeTheNext: what the daemon has started beside itself ends before
// another daemon can have the run directory, and take it over.
func TestLeaveBeforeTheNext(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	left := false
	s := serve(t, Config{Socket: socket, Leave: func() {
		left = true
		if f, err := lockfile.Take(filepath.Join(filepath.Dir(socket), "token.lock")); err == nil {
			t.Errorf("the run directory is free: %v, %v", f, err)
		}
		if chassis.Answers("unix", socket) {
			t.Error("it still answers")
		}
	}})
	if err := s.stop(); err != nil || !left {
		t.Errorf("stopped: %v, left: %v", err, left)
	}
}
