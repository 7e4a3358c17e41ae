package token

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

// signer signs grants for tests.
type signer struct {
	t   testing.TB
	key grant.PrivateKey
}

// trusted returns a signer, and the configuration of a daemon on node n that trusts it.
func trusted(t testing.TB) (signer, *Grants) {
	k := signer{t, grant.GenerateKey()}
	return k, &Grants{Trust: grant.TrustOf(k.key.Public()), Node: "n", Keep: time.Hour}
}

// grantOf returns the grant of a registration on node n.
func grantOf(r wire.Registration, serial uint64) grant.Grant {
	g := grant.Of(r)
	g.Node, g.Serial, g.NotAfter = "n", serial, time.Now().Add(time.Hour)
	return g
}

func (k signer) sign(g grant.Grant) string {
	k.t.Helper()
	text, err := k.key.Sign(g)
	if err != nil {
		k.t.Fatal(err)
	}
	return text
}

func (s *server) grantedSocket() string {
	return filepath.Join(filepath.Dir(s.socket), GrantedDir, "token.sock")
}

// present connects a process of a registration with a grant.
func (s *server) present(text string, r wire.Registration) (*tokentest.Client, error) {
	return tokentest.DialWith(s.grantedSocket(), r.Instance, r.Secret, tokentest.Options{Grant: &text})
}

// admit connects a process, which must be admitted, and runs it once.
func (s *server) admit(text string, r wire.Registration) *tokentest.Client {
	s.t.Helper()
	c, err := s.present(text, r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// refuses fails the test unless the error is a refusal with the text, on one line.
func refuses(t testing.TB, what string, err error, want string) {
	t.Helper()
	if !errors.Is(err, tokentest.ErrRefused) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got %v, want a refusal of one line with %q", what, err, want)
	}
}

var small = share{sm: 50, request: 0.5, limit: 1}

// TestGrant: a grant registers its instance. Further processes need only instance and secret, with and without the
// grant, and also after its time.
func TestGrant(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	r := reg("a", small)
	text := k.sign(grantOf(r, 1))
	first := s.admit(text, r)
	s.lease(first)
	if c := s.row("a"); c.SMPct != 50 || c.QuotaRequest != 0.5 || c.QuotaLimit != 1 || c.MemLimitMiB != 1024 || c.Function != "f-a" {
		t.Errorf("status of the instance: got %+v, want the slice of the grant", c)
	}
	if got := first.MemLimit(); got != 1<<30 {
		t.Errorf("memory limit of the page: got %d, want %d", got, 1<<30)
	}
	s.admit(text, r)
	further, err := tokentest.Dial(s.grantedSocket(), "a", r.Secret, 0)
	if err != nil {
		t.Fatalf("further process without a grant: %v", err)
	}
	further.Close()
	for path, mode := range map[string]os.FileMode{s.grantedSocket(): 0o666, filepath.Dir(s.grantedSocket()): 0o755, s.d.registry.grants.records.dir: 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode of %s: got %v, %v; want %o", path, info, err, mode)
		}
	}
	if _, err := os.Stat(s.folder("a")); err == nil {
		t.Error("the instance has a folder of its own, want only the common one of instances with grants")
	}
}

// TestGrantRefused: each invalid grant is refused with a line, and registers nothing.
func TestGrantRefused(t *testing.T) {
	k, cfg := trusted(t)
	other, _ := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a, b := reg("a", small), reg("b", small)
	with := func(change func(*grant.Grant)) string {
		g := grantOf(a, 1)
		change(&g)
		return k.sign(g)
	}
	good := k.sign(grantOf(a, 1))
	long := strings.Repeat("x", wire.MaxGrant)
	for _, tt := range []struct {
		name, text string
		as         wire.Registration
		want       string
	}{
		{"another key", other.sign(grantOf(a, 1)), a, "no trusted key has signed"},
		{"another node", with(func(g *grant.Grant) { g.Node = "m" }), a, "is for node m, and this is node n"},
		{"expired", with(func(g *grant.Grant) { g.NotAfter = time.Now().Add(-grant.Skew - 2*time.Second) }), a, "the grant expired at"},
		{"another instance", good, b, "do not match the grant"},
		{"another secret", good, wire.Registration{Instance: "a", Secret: "guess"}, "do not match the grant"},
		{"swapped secrets", good, wire.Registration{Instance: "a", Secret: b.Secret}, "do not match the grant"},
		{"stolen, without a secret", good, wire.Registration{Instance: "a"}, "do not match the grant"},
		{"the hash as the secret", good, wire.Registration{Instance: "a", Secret: fmt.Sprintf("%x", grant.HashOf(a.Secret))[:63]}, "do not match the grant"},
		{"no grant", "gfaas-grant-v1.", a, "malformed"},
		{"empty", "", a, "malformed"},
		{"as long as possible", long, a, "malformed"},
		{"too large", long + "x", a, "more than 4096 bytes"},
	} {
		_, err := s.present(tt.text, tt.as)
		refuses(t, tt.name, err, tt.want)
	}
	if _, err := s.present(strings.Repeat("x", 100_000), a); err == nil {
		t.Error("a grant of 100 kB: got no error, want one")
	}
	_, err := tokentest.Dial(s.grantedSocket(), "a", a.Secret, 0)
	refuses(t, "hello without a grant", err, "and the process has sent no grant")
	_, err = tokentest.DialWith(s.clientSocket(), "a", a.Secret, tokentest.Options{Grant: &good})
	refuses(t, "at the common socket", err, "only at the socket granted/token.sock")
	if st := s.status(); len(st.GPUs) != 0 {
		t.Errorf("status after refused grants: got %+v, want no instance", st)
	}
	if files, _ := os.ReadDir(s.d.registry.grants.records.dir); len(files) != 0 {
		t.Errorf("records after refused grants: got %v, want none", files)
	}
	s.admit(with(func(g *grant.Grant) { g.NotAfter = time.Now().Add(-grant.Skew + 10*time.Second) }), a) // clocks differ by less than a minute
}

// TestGrantReplayed: the serial of an instance must increase.
func TestGrantReplayed(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	one, two := reg("a", small), reg("a", share{sm: 20, request: 0.2, limit: 0.2})
	two.Secret = "second"
	first, second := k.sign(grantOf(one, 1)), k.sign(grantOf(two, 2))
	c := s.admit(first, one)
	_, err := s.present(second, two)
	refuses(t, "another secret while a process runs", err, "whose processes have not ended")
	c.Close()
	eventually(t, "the first process has left", func() bool { return s.row("a").PID == 0 })
	s.admit(second, two)
	if got := s.row("a"); got.SMPct != 20 {
		t.Errorf("SM share after the second grant: got %v, want 20", got.SMPct)
	}
	_, err = s.present(first, one)
	refuses(t, "the first grant again", err, "serial 1 is not above 2")
	same := grantOf(two, 2)
	same.GPUs[0].SMPct = 100
	_, err = s.present(k.sign(same), two)
	refuses(t, "another grant with the same serial", err, "serial 2 is not above 2")
	larger := grantOf(two, 3)
	larger.GPUs[0].QuotaLimit = 1
	s.admit(k.sign(larger), two) // a later grant changes the slice of running processes
	if got := s.row("a"); got.QuotaLimit != 1 {
		t.Errorf("quota limit after a later grant with the same secret: got %v, want 1", got.QuotaLimit)
	}
	moved := grantOf(two, 4)
	moved.GPUs[0].GPU = "sim:1"
	_, err = s.present(k.sign(moved), two)
	refuses(t, "another GPU while a process runs", err, "cannot change until its processes have ended")
}

// TestGrantAndLocal: a grant never replaces a registration at the control socket. The reverse is possible, and
// neither kind is reachable at a socket of the other.
func TestGrantAndLocal(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a, b := reg("a", small), reg("b", small)
	s.register(a)
	_, err := s.present(k.sign(grantOf(a, 1)), a)
	refuses(t, "grant of a local instance", err, "instance a is registered on this node, which a grant does not replace")
	_, err = tokentest.Dial(s.grantedSocket(), "a", a.Secret, 0)
	refuses(t, "local instance at the socket for grants", err, "do not match a registration")

	text := k.sign(grantOf(b, 1))
	c := s.admit(text, b)
	_, err = s.dial("b", 0)
	refuses(t, "instance with a grant at the common socket", err, "do not match a registration")
	c.Close()
	eventually(t, "the process has left", func() bool { return s.row("b").PID == 0 })
	s.register(b)
	_, err = s.present(text, b)
	refuses(t, "grant after a local registration", err, "which a grant does not replace")
	local, err := s.dial("b", 0)
	if err != nil {
		t.Fatal(err)
	}
	local.Close()
	if code, body := s.do("DELETE", "/v1/instances/b", ""); code != 204 {
		t.Fatalf("unregister: got %d %s", code, body)
	}
	_, err = s.present(text, b)
	refuses(t, "grant of an unregistered instance", err, "revoked")
	s.admit(k.sign(grantOf(b, 2)), b)
}

// TestGrantUnregistered: gfaas down and DELETE end the effect of a grant, also for the next daemon.
func TestGrantUnregistered(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a := reg("a", small)
	text := k.sign(grantOf(a, 1))
	c := s.admit(text, a)
	if code, body := s.do("DELETE", "/v1/instances/a", ""); code != 204 {
		t.Fatalf("unregister: got %d %s", code, body)
	}
	<-c.Closed
	_, err := s.present(text, a)
	refuses(t, "the grant again", err, "revoked")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	next := serve(t, Config{Socket: s.socket, Grants: cfg})
	_, err = next.present(text, a)
	refuses(t, "the grant at the next daemon", err, "revoked")
	next.admit(k.sign(grantOf(a, 2)), a)
}

// TestGrantUnregisteredOnFullDisk: if the end of a grant cannot be saved, the command fails, and the instance stays.
// Otherwise, the next daemon would restore it.
func TestGrantUnregisteredOnFullDisk(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a := reg("a", small)
	text := k.sign(grantOf(a, 1))
	c := s.admit(text, a)
	blocked := s.d.registry.grants.records.path("a") + ".new/x" // a folder where the new record would be
	if err := os.MkdirAll(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("DELETE", "/v1/instances/a", ""); code != 500 || !strings.Contains(body, "save") {
		t.Errorf("unregister: got %d %s, want 500 with the reason", code, body)
	}
	s.lease(c)
	if err := os.RemoveAll(filepath.Dir(blocked)); err != nil {
		t.Fatal(err)
	}
	s.admit(text, a)
	if code, body := s.do("DELETE", "/v1/instances/a", ""); code != 204 {
		t.Errorf("unregister again: got %d %s", code, body)
	}
	_, err := s.present(text, a)
	refuses(t, "the grant after it", err, "revoked")
}

// TestGrantConflictKeepsRecord: if a process of an instance connects while a later grant replaces its registration, the
// grant is refused, and the next daemon restores the registration.
func TestGrantConflictKeepsRecord(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	one, two := reg("a", small), reg("a", small)
	two.Secret = "second"
	c := s.admit(k.sign(grantOf(one, 1)), one)
	c.Close()
	eventually(t, "the first process has left", func() bool { return s.row("a").PID == 0 })

	path := s.d.registry.grants.records.path("a")
	if err := syscall.Mkfifo(path+".new", 0o600); err != nil { // delays the record of the later grant
		t.Fatal(err)
	}
	checked := func() (at time.Time) {
		_ = s.d.locked(func() { at = s.d.registry.used })
		return at
	}
	before, refused := checked(), make(chan error, 1)
	go func() {
		_, err := s.present(k.sign(grantOf(two, 2)), two)
		refused <- err
	}()
	eventually(t, "the later grant is checked", func() bool { return checked() != before })
	c, err := tokentest.Dial(s.grantedSocket(), "a", one.Secret, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(path + ".new"); err != nil {
		t.Fatal(err)
	}
	refuses(t, "the later grant", <-refused, "whose processes have not ended")
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("record: %v, %v; want that of the first grant", info, err)
	}
	c.Close()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	next := serve(t, Config{Socket: s.socket, Grants: cfg})
	c, err = tokentest.Dial(next.grantedSocket(), "a", one.Secret, 0)
	if err != nil {
		t.Fatalf("process of the first grant at the next daemon: %v", err)
	}
	c.Close()
}

// TestGrantKept: the next daemon admits processes without a grant, changes of the slice stay, and serials count on.
func TestGrantKept(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a := reg("a", small)
	text := k.sign(grantOf(a, 5))
	s.admit(text, a)
	if code, body := s.do("PATCH", "/v1/instances/a", `{"quota_limit": 0.75}`); code != 204 {
		t.Fatalf("change of the slice: got %d %s", code, body)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.grantedSocket()); err == nil {
		t.Error("the socket stays after the end of the daemon, want none")
	}
	if _, err := os.Stat(filepath.Dir(s.grantedSocket())); err != nil {
		t.Errorf("folder of the socket, which containers have mounted: got %v, want it to stay", err)
	}
	next := serve(t, Config{Socket: s.socket, Grants: cfg})
	c, err := tokentest.Dial(next.grantedSocket(), "a", a.Secret, 0)
	if err != nil {
		t.Fatalf("reconnection without a grant: %v", err)
	}
	defer c.Close()
	if got := next.row("a"); got.QuotaLimit != 0.75 {
		t.Errorf("quota limit at the next daemon: got %v, want 0.75", got.QuotaLimit)
	}
	next.advance(2 * time.Hour)
	next.admit(text, a) // the library sends its grant with each hello, also after the grant's time
	earlier := grantOf(a, 4)
	earlier.NotAfter = time.Now().Add(3 * time.Hour)
	_, err = next.present(k.sign(earlier), a)
	refuses(t, "an earlier serial", err, "serial 4 is not above 5")
	// A daemon without trusted keys does not load the registrations, and keeps their files.
	c.Close()
	if err := next.stop(); err != nil {
		t.Fatal(err)
	}
	without := serve(t, Config{Socket: s.socket})
	if st := without.status(); len(st.GPUs) != 0 {
		t.Errorf("status without trusted keys: got %+v, want no instance", st)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(s.socket), grantsDir, "a.json")); err != nil {
		t.Errorf("record of the registration: got %v, want it to stay", err)
	}
}

// advance moves the clock of grants forward, and ends the time for reconnections.
func (s *server) advance(d time.Duration) {
	s.t.Helper()
	if err := s.d.locked(func() {
		now := s.d.registry.grants.now()
		s.d.registry.grants.now = func() time.Time { return now.Add(d) }
		s.d.registry.opened = time.Now().Add(-reconnectTime)
	}); err != nil {
		s.t.Fatal(err)
	}
}

// ended reports whether the daemon knows that no process of the instance is left.
func (s *server) ended(id string) (ended bool) {
	s.d.tidy()
	_ = s.d.locked(func() { ended = !s.d.registry.instances[id].grant.Ended.IsZero() })
	return ended
}

// registered reports whether the instance is registered.
func (s *server) registered(id string) (registered bool) {
	s.d.tidy()
	_ = s.d.locked(func() { registered = s.d.registry.instances[id] != nil })
	return registered
}

// TestGrantKeep: the registration ends after the time Keep without a process. Its grant is accepted again until it
// expires, and an earlier one is not.
func TestGrantKeep(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a := reg("a", small)
	earlier, text := k.sign(grantOf(a, 1)), k.sign(grantOf(a, 2))
	cfg.Keep = 10 * time.Minute
	s.advance(0)
	c := s.admit(text, a)
	c.Close()
	eventually(t, "the daemon sees the end of the process", func() bool { return s.ended("a") })
	again := s.admit(text, a)
	eventually(t, "the daemon sees the further process", func() bool { return !s.ended("a") })
	again.Close()
	eventually(t, "the daemon sees its end", func() bool { return s.ended("a") })
	s.advance(cfg.Keep - time.Second)
	if !s.registered("a") {
		t.Error("the registration has ended before --grant-keep, want it to stay")
	}
	s.advance(2 * time.Second)
	if s.registered("a") {
		t.Error("the registration stays after --grant-keep, want it to have ended")
	}
	_, err := tokentest.Dial(s.grantedSocket(), "a", a.Secret, 0)
	refuses(t, "hello without a grant", err, "do not match a registration")
	_, err = s.present(earlier, a)
	refuses(t, "the earlier grant", err, "serial 1 is not above 2")
	s.admit(text, a)
}

// TestGrantForgotten: an accepted grant without a registration is forgotten once it has expired.
func TestGrantForgotten(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a := reg("a", small)
	s.admit(k.sign(grantOf(a, 2)), a)
	if code, body := s.do("DELETE", "/v1/instances/a", ""); code != 204 {
		t.Fatalf("unregister: got %d %s", code, body)
	}
	file := s.d.registry.grants.records.path("a")
	if _, err := os.Stat(file); err != nil {
		t.Errorf("record of the accepted grant: got %v, want it to stay", err)
	}
	s.advance(time.Hour)
	s.d.tidy()
	if _, err := os.Stat(file); err != nil {
		t.Errorf("record of the accepted grant within the time for different clocks: got %v, want it to stay", err)
	}
	s.advance(2 * grant.Skew)
	s.d.tidy()
	if _, err := os.Stat(file); err == nil {
		t.Error("record of the expired grant: got one, want none")
	}
	s.advance(-2 * time.Hour)
	s.admit(k.sign(grantOf(a, 1)), a)
}

// TestGrantReload: SIGHUP reads the trusted keys again. Accepted registrations stay.
func TestGrantReload(t *testing.T) {
	k, cfg := trusted(t)
	other, _ := trusted(t)
	failed := errors.New("no file")
	next, fail := grant.TrustOf(other.key.Public()), true
	cfg.Reload = func() (grant.Trust, error) {
		if fail {
			return grant.Trust{}, failed
		}
		return next, nil
	}
	s := serve(t, Config{Grants: cfg})
	a, b := reg("a", small), reg("b", small)
	text := k.sign(grantOf(a, 1))
	s.admit(text, a)
	if err := s.d.registry.grants.reload(); !errors.Is(err, failed) {
		t.Errorf("reload without a file: got %v, want %v", err, failed)
	}
	fail = false
	if err := s.d.registry.grants.reload(); err != nil {
		t.Fatal(err)
	}
	s.admit(text, a)
	_, err := s.present(k.sign(grantOf(b, 1)), b)
	refuses(t, "a grant of the removed key", err, "no trusted key")
	s.admit(other.sign(grantOf(b, 1)), b)
}

// TestGrantsAtOnce: all processes of an instance that start together are admitted, and of several grants the one with
// the largest serial wins.
func TestGrantsAtOnce(t *testing.T) {
	k, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	a := reg("a", small)
	var texts []string
	for serial := range uint64(8) {
		g := grantOf(a, serial+1)
		g.GPUs[0].QuotaLimit = 0.5 + float64(serial+1)/64
		texts = append(texts, k.sign(g))
	}
	var wg sync.WaitGroup
	for i, text := range append(texts, texts...) {
		wg.Go(func() {
			c, err := s.present(text, a)
			if err == nil {
				c.Close()
			} else if i%8 == 7 {
				t.Errorf("the grant with the largest serial: got %v, want it admitted", err)
			}
		})
	}
	wg.Wait()
	if got := s.row("a"); got.QuotaLimit != 0.5+8./64 {
		t.Errorf("quota limit: got %v, want that of the largest serial, %v", got.QuotaLimit, 0.5+8./64)
	}
}

// grantModel is a simple twin of the daemon's decisions about the grants of one instance.
type grantModel struct {
	last    uint64 // serial of the last accepted grant
	live    bool   // it is registered
	revoked bool
	local   bool
}

// TestGrantProperties compares the registry with the model, for random sequences of grants and registrations.
func TestGrantProperties(t *testing.T) {
	_, cfg := trusted(t)
	s := serve(t, Config{Grants: cfg})
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		id := fmt.Sprintf("i%d", n)
		r := reg(id, small)
		var m grantModel
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"grant", "grant", "grant", "local", "unregister"}).Draw(t, "step") {
			case "grant":
				serial := rapid.Uint64Range(1, 4).Draw(t, "serial")
				inst := &instance{reg: r, secret: grant.HashOf(r.Secret), grant: &accepted{Serial: serial, Hash: grant.HashOf(fmt.Sprint(serial)), Until: time.Now().Add(time.Hour)}}
				inst.reg.Secret = ""
				want := !m.local && serial >= m.last && !(serial == m.last && m.revoked)
				if err := s.d.registry.register(inst); (err == nil) != want {
					t.Fatalf("grant %d in %+v: got %v, want accepted %v", serial, m, err, want)
				}
				if want {
					m = grantModel{last: serial, live: true}
				}
			case "local":
				inst, err := newInstance(r)
				if err == nil {
					err = s.d.registry.register(inst)
				}
				if err != nil {
					t.Fatal(err)
				}
				m = grantModel{last: m.last, local: true, revoked: m.revoked || m.live}
			case "unregister":
				err := s.d.registry.unregister(id)
				if known := m.live || m.local; (err == nil) != known {
					t.Fatalf("unregister in %+v: got %v, want success %v", m, err, known)
				}
				m = grantModel{last: m.last, revoked: m.revoked || m.live}
			}
			_, granted := os.Stat(s.d.registry.grants.records.path(id))
			_, local := os.Stat(s.d.registry.records.path(id))
			if (granted == nil) != (m.last > 0) || (local == nil) != m.local {
				t.Fatalf("records in %+v: got one of a grant %v, a local one %v", m, granted == nil, local == nil)
			}
		}
		_ = s.d.registry.unregister(id)
	})
}

// BenchmarkAdmitGrant measures how many instances a second register themselves: connection, verification, record and
// hello.
func BenchmarkAdmitGrant(b *testing.B) {
	k, cfg := trusted(b)
	s := serve(b, Config{Grants: cfg})
	texts := make([]string, b.N)
	for i := range texts {
		texts[i] = k.sign(grantOf(reg(fmt.Sprintf("i%d", i), share{sm: 0.001, request: 0.001, limit: 1}), 1))
	}
	b.ResetTimer()
	for i, text := range texts {
		r := reg(fmt.Sprintf("i%d", i), small)
		c, err := s.present(text, r)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
}
