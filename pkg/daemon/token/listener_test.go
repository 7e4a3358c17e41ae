package token

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
)

// folder returns the folder of an instance's own socket.
func (s *server) folder(id string) string {
	return filepath.Join(filepath.Dir(s.clientSocket()), id)
}

// TestInstanceListener checks that an instance's own socket admits only that instance.
func TestInstanceListener(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	s.register(reg("b", share{sm: 30, request: 1, limit: 1}))
	socket := filepath.Join(s.folder("a"), "token.sock")
	for path, mode := range map[string]os.FileMode{socket: 0o600, s.folder("a"): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode of %s: got %v, %v; want %o", path, info, err, mode)
		}
	}
	c, err := tokentest.Dial(socket, "a", "secret of a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.lease(c)
	if _, err := tokentest.Dial(socket, "b", "secret of b", 0); !errors.Is(err, tokentest.ErrRefused) {
		t.Errorf("hello of instance b at the socket of a: got %v, want a refusal", err)
	}
	s.register(reg("a", share{sm: 50, request: 1, limit: 1})) // a second registration keeps the socket
	again, err := tokentest.Dial(socket, "a", "secret of a", 0)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNoContent {
		t.Fatalf("unregister instance a: got %d, want 204", code)
	}
	if _, err := os.Stat(s.folder("a")); err == nil {
		t.Errorf("folder %s of a removed instance: got one, want none", s.folder("a"))
	}
}

// TestInstanceListenerAfterRestart checks that the next daemon's socket appears in a mounted
// folder, and that folders of unknown instances are removed.
func TestInstanceListenerAfterRestart(t *testing.T) {
	first := serve(t, Config{Socket: filepath.Join(runDir(t), "token.sock")})
	first.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	mounted, err := os.Open(first.folder("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Close()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(first.folder("a")); err != nil || len(left) != 0 {
		t.Errorf("folder of a after the daemon's end: got %v, %v; want it empty", left, err)
	}
	stale := first.folder("gone")
	if err := os.Mkdir(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{Socket: first.socket})
	eventually(t, "the next daemon has created the socket in the same folder", func() bool {
		names, err := mounted.Readdirnames(-1)
		_, _ = mounted.Seek(0, 0)
		return err == nil && len(names) == 1 && names[0] == "token.sock"
	})
	eventually(t, "a process of instance a is connected", func() bool { // a socket has its name before it listens
		c, err := tokentest.Dial(filepath.Join(s.folder("a"), "token.sock"), "a", "secret of a", 0)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if _, err := os.Stat(stale); err == nil {
		t.Errorf("folder %s of an unknown instance: got one, want none", stale)
	}
}

// TestInstanceListenerOfLongPath checks that an instance's socket may have a path that is too long
// for an address, because a container sees it at a short path.
func TestInstanceListenerOfLongPath(t *testing.T) {
	s := serve(t, Config{})
	id := strings.Repeat("x", 50)
	dir := runDir(t)
	const longest = 107 // length of an address in bytes
	dir = filepath.Join(dir, strings.Repeat("d", longest-len(filepath.Join(dir, "d", "client", "token.sock"))+1))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	deep := serve(t, Config{Socket: filepath.Join(dir, "t.sock")})
	for _, s := range []*server{s, deep} {
		s.register(reg(id, share{sm: 10, request: 1, limit: 1}))
		short := filepath.Join(runDir(t), "s")
		if err := os.Symlink(s.folder(id), short); err != nil {
			t.Fatal(err)
		}
		c, err := tokentest.Dial(filepath.Join(short, "token.sock"), id, "secret of "+id, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	_, err := Open(Config{Socket: filepath.Join(dir+"d", "t.sock")})
	if err == nil || !strings.Contains(err.Error(), "is too long for a socket") {
		t.Errorf("socket path that is too long: got error %v, want … is too long for a socket", err)
	}
}

// TestInstanceListenerIsTaken checks that a file in the place of an instance's folder leads to an
// error, and that the common socket remains.
func TestInstanceListenerIsTaken(t *testing.T) {
	s := serve(t, Config{})
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.clientSocket()), "taken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"taken": http.StatusInternalServerError, "token.sock": http.StatusBadRequest} {
		if code, body := s.do("POST", "/v1/instances", `{"instance":"`+id+`","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`); code != want {
			t.Errorf("register instance %s: got %d %s, want %d", id, code, body, want)
		}
	}
	conn, err := net.Dial("unixpacket", s.clientSocket())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestInstanceListenerForOtherUsers(t *testing.T) {
	s := serve(t, Config{ClientUIDs: []int{12345}})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	for path, mode := range map[string]os.FileMode{
		filepath.Join(s.folder("a"), "token.sock"): 0o666, s.folder("a"): 0o711, filepath.Dir(s.folder("a")): 0o700, s.clientSocket(): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode of %s: got %v, %v; want %o", path, info, err, mode)
		}
	}
}
