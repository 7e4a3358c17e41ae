package token

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience bounds the time for which tests wait for an expected event.
const patience = time.Minute

func TestMain(m *testing.M) {
	if play := roles[os.Getenv(roleEnv)]; play != nil {
		if err := play(os.Getenv(pathEnv)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// server is a daemon under test.
type server struct {
	t      testing.TB
	socket string
	d      *Daemon      // nil if the daemon runs in its own process
	stop   func() error // shuts the daemon down and waits for its end
	ends   chan error
}

func (s *server) clientSocket() string {
	return filepath.Join(filepath.Dir(s.socket), "client", "token.sock")
}

// serveApart starts a daemon in its own process.
func serveApart(t testing.TB, socket string) (*server, *exec.Cmd) {
	t.Helper()
	return &server{t: t, socket: socket}, role(t, roleDaemon, socket, "serves")
}

func runDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "tok[e]nd") // not a pattern; t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func serve(t testing.TB, cfg Config) *server {
	t.Helper()
	if cfg.Socket == "" {
		cfg.Socket = filepath.Join(runDir(t), "token.sock")
	}
	if cfg.Log == nil && testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{t: t, socket: cfg.Socket, d: d, ends: make(chan error, 1)}
	go func() { s.ends <- d.Serve(ctx) }()
	var result error
	ended := false
	s.stop = func() error {
		cancel()
		if !ended {
			ended = true
			select {
			case result = <-s.ends:
			case <-time.After(patience):
				t.Fatalf("the daemon did not end within %v", patience)
			}
		}
		return result
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("end of the daemon: got %v, want no error", err)
		}
	})
	return s
}

func (s *server) http() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
		},
	}}
}

// do sends a control request and returns the status and the body.
func (s *server) do(method, path, body string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, "http://tokend"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.http().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// share is an instance's share of a GPU: its SM share in percent, and its quota.
type share struct {
	sm      float64
	request float64
	limit   float64
}

func reg(id string, s share) wire.Registration {
	return wire.Registration{
		Instance: id, Function: "f-" + id, Secret: "secret of " + id,
		Allocation: wire.Allocation{GPU: "sim", SMPct: s.sm, QuotaRequest: s.request, QuotaLimit: s.limit, MemLimit: 1 << 30},
	}
}

func (s *server) register(r wire.Registration) {
	s.t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		s.t.Fatal(err)
	}
	if status, body := s.do("POST", "/v1/instances", string(text)); status != http.StatusOK {
		s.t.Fatalf("register instance %s: got %d %s, want 200", r.Instance, status, body)
	}
}

func (s *server) dial(id string, memUsed uint64) (*tokentest.Client, error) {
	return tokentest.Dial(s.clientSocket(), id, "secret of "+id, memUsed)
}

// join registers an instance and connects a process of it.
func (s *server) join(r wire.Registration) *tokentest.Client {
	s.t.Helper()
	s.register(r)
	c, err := s.dial(r.Instance, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// lease requests a lease and waits for it.
func (s *server) lease(c *tokentest.Client) uint32 {
	s.t.Helper()
	if err := c.Request(); err != nil {
		s.t.Fatal(err)
	}
	return s.await(c)
}

func (s *server) await(c *tokentest.Client) uint32 {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	lease, err := c.Await(ctx)
	if err != nil {
		s.t.Fatalf("wait for a lease: %v", err)
	}
	return lease
}

func (s *server) status() wire.Status {
	s.t.Helper()
	code, body := s.do("GET", "/v1/status", "")
	var out wire.Status
	if err := json.NewDecoder(strings.NewReader(body)).Decode(&out); err != nil || code != 200 {
		s.t.Fatalf("GET /v1/status: got %d %s, %v; want 200 and a status", code, body, err)
	}
	return out
}

// eventually polls until the condition holds.
func eventually(t testing.TB, condition string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("timed out after %v waiting until %s", patience, condition)
		}
	}
}

func TestGrantRevokeReturn(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 60, request: 0.3, limit: 0.3}))
	if a.Welcome.WindowNS != 1e8 || a.Welcome.NSlots != wire.PageSlotsMost || a.Welcome.MemLimit != 1<<30 || a.MemLimit() != 1<<30 {
		t.Errorf("got welcome %+v and a memory limit of %d in the page, want a window of 100 ms, %d slots and %d bytes in both", a.Welcome, a.MemLimit(), wire.PageSlotsMost, 1<<30)
	}
	if a.Gate() != 0 {
		t.Errorf("gate before a request: got %d, want 0", a.Gate())
	}
	var lease uint32
	eventually(t, "the status was read before the budget of client a ended, after 30 ms", func() bool {
		lease = s.lease(a)
		st := s.status()
		if a.Gate() != lease {
			if err := a.Return(<-a.Revoked, 0, tokentest.WantsNoMore); err != nil {
				t.Fatal(err)
			}
			return false
		}
		if st.GPUs[0].SMRunningPct != 60 || st.GPUs[0].Clients[0].State != "running" {
			t.Errorf("status while client a runs: got %+v, want 60%% of the SMs leased and the state running", st)
		}
		return true
	})
	select {
	case end := <-a.Revoked:
		if end != lease || a.Gate() != 0 {
			t.Errorf("revoke: got lease %d, gate %d; want lease %d, gate 0", end, a.Gate(), lease)
		}
	case <-time.After(patience):
		t.Fatalf("the lease of client a was not revoked within %v", patience)
	}
	if st := s.status(); st.GPUs[0].SMRunningPct != 60 || st.GPUs[0].Clients[0].State != "draining" {
		t.Errorf("status while client a drains: got %+v, want 60%% of the SMs leased and the state draining", st)
	}
	if err := a.Return(lease, 30*time.Millisecond, tokentest.WantsMore); err != nil {
		t.Fatal(err)
	}
	if again := s.await(a); again == lease {
		t.Errorf("second lease: got number %d again, want another one", again)
	}
}

func TestClientsThatDoNotFitTakeTurns(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", share{sm: 60, request: 1, limit: 1})), s.join(reg("b", share{sm: 60, request: 1, limit: 1}))
	first := s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "client b waits for a lease", func() bool { return s.status().GPUs[0].Clients[1].State == "waiting" })
	if b.Gate() != 0 {
		t.Fatalf("gate of client b while a holds a lease: got %d, want 0", b.Gate())
	}
	if why := s.row("b").Why; !strings.HasPrefix(why, "waiting-for-sms; sm_pct=60; ") {
		t.Errorf("why client b waits: got %q, want waiting-for-sms; sm_pct=60; …", why)
	}
	if err := a.Return(first, time.Millisecond, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	s.await(b)
}

// TestAnnouncedEndOverlapsHandover checks that a waiting client is granted its lease before the
// holder returns its own, once the holder has announced that its work in flight ends soon.
func TestAnnouncedEndOverlapsHandover(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", share{sm: 100, request: 0.5, limit: 0.5})), s.join(reg("b", share{sm: 100, request: 0.5, limit: 1})) // b's lease must not end before the test sees it
	if flags := a.Header().Flags; flags != wire.PageEndings|wire.PageFaults|wire.PagePIDs {
		t.Errorf("flags of the page: got %d, want %d", flags, wire.PageEndings|wire.PageFaults|wire.PagePIDs)
	}
	lease := s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Revoked:
	case <-time.After(patience):
		t.Fatalf("the lease of client a was not revoked within %v", patience)
	}
	if err := a.Send(wire.Ending{Lease: lease, LeftNS: 1000}); err != nil {
		t.Fatal(err)
	}
	s.await(b)
	eventually(t, "the announced time of client a is over", func() bool {
		row := s.row("a")
		if row.State != "idle" && (row.State != "draining" || row.Reason.Code != policy.Overlaps) {
			t.Fatalf("client a: got state %s, %s; want idle, or draining with the reason %s", row.State, row.Why, policy.Overlaps)
		}
		return row.State == "draining"
	})
	if err := a.Return(lease, time.Millisecond, tokentest.WantsMore); err != nil {
		t.Fatal(err)
	}
	eventually(t, "client a waits for a lease again", func() bool { return s.row("a").State == "waiting" })
}

func TestClientsThatFitRunTogether(t *testing.T) {
	s := serve(t, Config{})
	for _, c := range []*tokentest.Client{s.join(reg("a", share{sm: 24, request: 1, limit: 1})), s.join(reg("b", share{sm: 24, request: 1, limit: 1})), s.join(reg("c", share{sm: 50, request: 1, limit: 1}))} {
		s.lease(c)
	}
	if got := s.status().GPUs[0].SMRunningPct; got != 98 {
		t.Errorf("SMs with leases: got %v%%, want 98%%", got)
	}
}

// TestShares checks that saturating clients get GPU time in the ratio of their quotas, and none gets more than its
// quota. On a busy host, all of them get less.
func TestShares(t *testing.T) {
	want := map[string]float64{"a": 0.2, "b": 0.3, "c": 0.5}
	const length = 3 * time.Second
	undisturbed(t, func() error {
		s := serve(t, Config{})
		ctx, cancel := context.WithTimeout(context.Background(), length)
		defer cancel()
		type result struct {
			id   string
			used time.Duration
			err  error
		}
		results := make(chan result, len(want))
		for id, quota := range want {
			c := s.join(reg(id, share{sm: 100, request: quota, limit: quota}))
			go func() {
				used, err := c.Saturate(ctx, 1, time.Millisecond)
				results <- result{id, used, err}
			}()
		}
		got, total := map[string]float64{}, 0.0
		for range want {
			r := <-results
			if r.err != nil {
				t.Fatalf("saturate the GPU as client %s: %v", r.id, r.err)
			}
			got[r.id] = r.used.Seconds() / length.Seconds()
			total += got[r.id]
		}
		t.Logf("used of the GPU: %v", got)
		if total < 0.5 {
			return fmt.Errorf("all clients together: got %.3f of the GPU, want at least half even on a busy host", total)
		}
		for id, quota := range want {
			if share := got[id] / total; share < quota-0.03 || share > quota+0.03 || got[id] > quota+0.03 {
				return fmt.Errorf("client %s: got %.3f of the GPU and %.3f of the time that all clients used, want %v ± 0.03 of that time, and at most %v of the GPU", id, got[id], share, quota, quota+0.03)
			}
		}
		return nil
	})
}

func TestLoneClientKeepsItsLease(t *testing.T) {
	s := serve(t, Config{Settings: Settings{Window: 5 * time.Millisecond}})
	a := s.join(reg("a", share{sm: 100, request: 1, limit: 1}))
	lease := s.lease(a)
	start := time.Now()
	eventually(t, "20 windows have passed", func() bool {
		if a.Gate() != lease {
			t.Fatalf("gate after %v: got %d, want lease %d", time.Since(start), a.Gate(), lease)
		}
		return time.Since(start) > 100*time.Millisecond
	})
}
