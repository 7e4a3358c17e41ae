package cli

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Values of listen's argument lives.
const (
	running = true
	killed  = false
)

// listen creates the socket of a running daemon or, if lives is false, of a killed one.
func listen(t *testing.T, network, path string, lives bool) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if !lives {
		_ = l.Close()
		return
	}
	t.Cleanup(func() { _ = l.Close() })
}

// expand replaces UID in a path.
func expand(path string, uid int) string { return strings.ReplaceAll(path, "UID", strconv.Itoa(uid)) }

// TestDefaultRunDir checks that all processes of a user find the same run directory, with or without XDG_RUNTIME_DIR. UID
// in a path stands for the user's number.
func TestDefaultRunDir(t *testing.T) {
	live := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { listen(t, "unix", filepath.Join(dir, expand(path, 0)), running) }
	}
	dead := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { listen(t, "unix", filepath.Join(dir, expand(path, 0)), killed) }
	}
	packets := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { listen(t, "unixpacket", filepath.Join(dir, expand(path, 0)), running) }
	}
	folder := func(path string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, expand(path, 0))
			if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
		}
	}
	file := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { write(t, filepath.Join(dir, expand(path, 0)), "{}") }
	}
	chown := func(path string, uid int) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Chown(filepath.Join(dir, expand(path, 0)), uid, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	type steps []func(*testing.T, string)
	session, sessions := folder("user/UID", 0o700), []string{"", "user/UID", "user/UID/", "user/4321"}
	for name, c := range map[string]struct {
		steps  steps
		with   []string // values of XDG_RUNTIME_DIR; "": not set
		byUser bool     // the user is not root; the files are root's unless a step changes that
		want   string
	}{
		"a session":                              {steps{session}, sessions, false, "user/UID/gfaas"},
		"root without a session":                 {nil, []string{"", "user/4321"}, false, "system"},
		"root, the services are installed":       {steps{folder("system", 0o700), chown("system", 4321)}, []string{"", "user/4321"}, false, "shared/gfaas-UID"},
		"a user without a session":               {nil, []string{"", "user/4321"}, true, "shared/gfaas-UID"},
		"a user, /run/gfaas is root's":           {steps{folder("system", 0o755)}, []string{""}, true, "shared/gfaas-UID"},
		"the services' own user":                 {steps{folder("system", 0o700), chown("system", 1234)}, []string{"", "user/UID"}, true, "system"},
		"a session that was named":               {nil, []string{"user/UID"}, false, "user/UID/gfaas"},
		"another folder that was named":          {steps{session, live("shared/gfaas-UID/token.sock")}, []string{"x"}, false, "x/gfaas"},
		"a daemon from before the session":       {steps{session, live("shared/gfaas-UID/token.sock")}, sessions, false, "shared/gfaas-UID"},
		"a daemon in root's folder":              {steps{session, live("system/token.sock")}, sessions, false, "system"},
		"a daemon in both":                       {steps{session, live("user/UID/gfaas/token.sock"), live("shared/gfaas-UID/token.sock")}, sessions, false, "user/UID/gfaas"},
		"a dead one and a live one":              {steps{session, dead("user/UID/gfaas/token.sock"), live("shared/gfaas-UID/token.sock")}, sessions, false, "shared/gfaas-UID"},
		"a live one and a dead one":              {steps{session, live("user/UID/gfaas/token.sock"), dead("shared/gfaas-UID/token.sock")}, sessions, false, "user/UID/gfaas"},
		"two dead ones":                          {steps{session, dead("user/UID/gfaas/token.sock"), dead("shared/gfaas-UID/token.sock")}, sessions, false, "user/UID/gfaas"},
		"a model daemon alone":                   {steps{session, packets("shared/gfaas-UID/model.sock")}, sessions, false, "shared/gfaas-UID"},
		"a gateway alone":                        {steps{session, live("shared/gfaas-UID/gateway.sock")}, sessions, false, "shared/gfaas-UID"},
		"a gateway and a token daemon":           {steps{session, live("user/UID/gfaas/gateway.sock"), live("shared/gfaas-UID/token.sock")}, sessions, false, "shared/gfaas-UID"},
		"instances whose daemon was killed":      {steps{session, file("shared/gfaas-UID/instances/a.json")}, sessions, false, "shared/gfaas-UID"},
		"a folder that others can write to":      {steps{session, live("shared/gfaas-UID/token.sock"), folder("shared/gfaas-UID", 0o777)}, sessions, false, "user/UID/gfaas"},
		"a folder of another user's":             {steps{session, live("shared/gfaas-UID/token.sock"), chown("shared/gfaas-UID", 4321)}, sessions, false, "user/UID/gfaas"},
		"a session's folder of another user's":   {steps{session, chown("user/UID", 4321)}, []string{""}, false, "system"},
		"an empty folder from an earlier daemon": {steps{session, folder("shared/gfaas-UID", 0o700)}, sessions, false, "user/UID/gfaas"},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("SKIPPED: only root can make other users' folders")
			}
			dir, err := os.MkdirTemp("", "run") // a short path, for sockets
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			uid := 0
			if c.byUser {
				uid = 1234
			}
			p := places{sessions: filepath.Join(dir, "user"), system: filepath.Join(dir, "system"), shared: filepath.Join(dir, "shared")}
			if err := errors.Join(os.Mkdir(p.sessions, 0o755), os.Mkdir(p.shared, 0o777)); err != nil {
				t.Fatal(err)
			}
			for _, step := range c.steps {
				step(t, dir)
			}
			for _, with := range c.with {
				if with != "" {
					with = dir + "/" + expand(with, uid)
				}
				want := filepath.Join(dir, expand(c.want, uid))
				if got := p.runDir(with, uid); got != want {
					t.Errorf("XDG_RUNTIME_DIR=%s: %s, want %s", with, got, want)
				}
			}
		})
	}
}
