package token

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestControlRefuses(t *testing.T) {
	s := serve(t, Config{})
	s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	for name, tt := range map[string]struct {
		body string
		code int
		want string
	}{
		"not JSON":   {"{", 400, "invalid registration"},
		"no id":      {`{"secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`, 400, "instance"},
		"path":       {`{"instance":"../x","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`, 400, "instance"},
		"sm":         {`{"instance":"x","secret":"s","gpu":"sim","sm_pct":101,"quota_request":1,"quota_limit":1}`, 400, "SM share 101"},
		"gpu":        {`{"instance":"x","secret":"s","gpu":"tpu","sm_pct":1,"quota_request":1,"quota_limit":1}`, 400, "is not a GPU"},
		"new secret": {`{"instance":"a","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`, 409, "the name a is in use by an instance whose processes have not ended (number of processes: 1)"},
		"long":       {`{"instance":"` + strings.Repeat("x", maxBody) + `"}`, 413, "more than"},
	} {
		var p wire.Problem
		code, body := s.do("POST", "/v1/instances", tt.body)
		if err := json.Unmarshal([]byte(body), &p); err != nil || code != tt.code || !strings.Contains(p.Message, tt.want) {
			t.Errorf("%s: got %d %s, want %d with %q", name, code, body, tt.code, tt.want)
		}
	}
}

func TestReRegisterChangesTheSlice(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	r := reg("a", share{sm: 30, request: 0.5, limit: 0.5})
	r.MemLimit = 2 << 30
	s.register(r)
	if got := s.status().GPUs[0].Clients[0]; got.SMPct != 30 || got.QuotaLimit != 0.5 || a.MemLimit() != 2<<30 {
		t.Errorf("after the change: got %+v, memory limit %d in the page; want 30%% of the SMs, a quota limit of 0.5 and %d bytes", got, a.MemLimit(), uint64(2<<30))
	}
}

// TestSMLimit checks that an instance starts with the SM share of its limit under the policy introspective, and with
// that of its request under multi-token, also after the next daemon has restored it with the other policy.
func TestSMLimit(t *testing.T) {
	for name, c := range map[string]struct {
		first, second    string
		start, limit     float64 // answer to the registration, and the limit in the status
		noted            bool
		runningByRequest bool // under the second daemon, two instances run at once
	}{
		"introspective, then multi-token": {policy.Introspection, policy.MultiToken, 60, 60, false, false},
		"multi-token":                     {policy.MultiToken, policy.MultiToken, 30, 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(runDir(t), "token.sock")
			first := serve(t, Config{Socket: socket, Policy: c.first})
			for _, id := range []string{"a", "b"} {
				r := reg(id, share{sm: 30, request: 1, limit: 1})
				r.SMLimitPct = 60
				text, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				var answer wire.Registered
				code, body := first.do("POST", "/v1/instances", string(text))
				if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK || answer.SMPct != c.start || strings.Contains(answer.Note, "the request") != c.noted {
					t.Errorf("registration: got %d %s, want sm_pct %v and a note: %v", code, body, c.start, c.noted)
				}
			}
			if row := first.row("a"); row.SMPct != 30 || row.SMLimitPct != c.limit {
				t.Errorf("status: got an SM share of %v%% with limit %v%%, want 30%% with %v%%", row.SMPct, row.SMLimitPct, c.limit)
			}
			if err := first.stop(); err != nil {
				t.Fatal(err)
			}
			second := serve(t, Config{Socket: socket, Policy: c.second})
			a, err := second.dial("a", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			b, err := second.dial("b", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			second.lease(a)
			if err := b.Request(); err != nil {
				t.Fatal(err)
			}
			want := map[bool]string{true: "running", false: "waiting"}[c.runningByRequest]
			eventually(t, "b is "+want+" beside a", func() bool { return second.row("b").State == want })
		})
	}
}

// TestReRegisterWhileProcessesJoin registers an instance alternately on two GPUs while its processes
// connect. The daemon must check for connected processes again after it has written the registration,
// and a connected process keeps its page.
func TestReRegisterWhileProcessesJoin(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	var dialing sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	for range 4 {
		dialing.Go(func() {
			for ctx.Err() == nil {
				c, err := s.dial("a", 0)
				switch {
				case err == nil:
					c.Close()
				case !errors.Is(err, tokentest.ErrRefused): // earlier connections may occupy all slots
					t.Errorf("connect a process: got %v, want a connection or a refusal", err)
					return
				}
			}
		})
	}
	accepted, conflicts := 0, 0
	for n := 0; (accepted < 20 || conflicts < 20) && !t.Failed() && n < 20000; n++ {
		r := reg("a", share{sm: 60, request: 1, limit: 1})
		r.GPU = fmt.Sprint("sim:", n%2)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		switch code, body := s.do("POST", "/v1/instances", string(text)); code {
		case http.StatusOK:
			accepted++
		case http.StatusConflict:
			conflicts++
		default:
			t.Fatalf("register on GPU %s: got %d %s, want 200 or 409", r.GPU, code, body)
		}
	}
	stop()
	dialing.Wait()
	t.Logf("%d registrations accepted, %d refused with 409", accepted, conflicts)
	known := s.status()
	text, err := os.ReadFile(s.d.registry.records.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	record, err := parseRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range known.GPUs {
		if is, want := len(g.Clients) > 0, g.GPU == record.reg.Device(); is != want {
			t.Errorf("GPU %s has the instance: got %v, want %v, since the record has GPU %s", g.GPU, is, want, record.reg.Device())
		}
	}
}

func TestWeb(t *testing.T) {
	s := serve(t, Config{Listen: "127.0.0.1:0"})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	if err := a.Return(s.lease(a), time.Millisecond, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string, string) {
		req, err := http.NewRequest("GET", "http://"+s.d.WebAddr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header.Get("Content-Type"), string(text)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/v1/status": 404} {
		if code, _, _ := get(path); code != want {
			t.Errorf("GET %s: got %d, want %d", path, code, want)
		}
	}
	eventually(t, "client a is idle", func() bool { return s.row("a").State == "idle" })
	_, kind, text := get("/metrics")
	if !strings.HasPrefix(kind, "application/openmetrics-text") {
		t.Errorf("content type of /metrics: got %q, want application/openmetrics-text", kind)
	}
	for _, want := range []string{
		`gfaas_token_grants_total{gpu="sim"} 1.0`, `gfaas_token_clients{gpu="sim",state="idle"} 1.0`,
		`gfaas_token_instances{gpu="sim"} 1.0`, `gfaas_token_wait_seconds_count{gpu="sim"} 1`, "# EOF",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics: want %s, got\n%s", want, text)
		}
	}
}

// metric returns the value of a series, and whether the series exists.
func (s *server) metric(series string) (float64, bool) {
	s.t.Helper()
	_, text := s.do("GET", "/metrics", "")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				s.t.Fatalf("parse the metric in %q: %v", line, err)
			}
			return v, true
		}
	}
	return 0, false
}

// TestCountersOfConnectedProcesses checks that the counters include a process's current activity, and not only
// finished leases or sessions: an undisturbed process may never return its lease.
func TestCountersOfConnectedProcesses(t *testing.T) {
	s := serve(t, Config{Settings: Settings{Window: 10 * time.Millisecond}})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	const of = `{gpu="sim",instance="a"}`
	if v, ok := s.metric("gfaas_token_launches_total" + of); !ok || v != 0 {
		t.Errorf("launches of a new process: got %v, found %v; want 0, true", v, ok)
	}
	lease := s.lease(a)
	a.Slot().Launches, a.Slot().BlockedNS = 5, 2e9
	for series, want := range map[string]float64{"gpu_seconds_total": 0.05, "launches_total": 5, "blocked_seconds_total": 2} {
		eventually(t, fmt.Sprintf("%s is at least %v", series, want), func() bool { v, _ := s.metric("gfaas_token_" + series + of); return v >= want })
	}
	if a.Gate() != lease {
		t.Errorf("gate: got %d, want lease %d, which was not revoked", a.Gate(), lease)
	}
	charged, _ := s.metric("gfaas_token_gpu_seconds_total" + of)
	a.Close()
	b, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Slot().Launches = 2
	eventually(t, "the launches include those of the process that has ended", func() bool { v, _ := s.metric("gfaas_token_launches_total" + of); return v == 7 })
	if v, _ := s.metric("gfaas_token_gpu_seconds_total" + of); v < charged {
		t.Errorf("GPU time after the process has ended: got %v s, want at least %v s", v, charged)
	}
}

// TestWebReaderThatDoesNotRead sends requests without reading the answers. The daemon must end the
// connection, because a few such clients could otherwise exhaust its descriptors.
func TestWebReaderThatDoesNotRead(t *testing.T) {
	s := serve(t, Config{Listen: "127.0.0.1:0", WebTimeout: 50 * time.Millisecond})
	for n := range 100 { // long answers fill the buffers quickly
		s.register(reg(fmt.Sprint("i", n), share{sm: 1, request: 1, limit: 1}))
	}
	conn, err := net.Dial("tcp", s.d.WebAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = conn.SetWriteDeadline(time.Now().Add(patience))
	for err == nil {
		_, err = conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: tokend\r\n\r\n"))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("connection of a client that reads nothing: got an open connection, want a closed one")
	}
}

func TestReload(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", share{sm: 60, request: 1, limit: 1})), s.join(reg("b", share{sm: 40, request: 1, limit: 1}))
	lease := s.lease(a)
	s.lease(b)
	if err := s.d.locked(func() { s.d.registry.gpus.configure(Settings{Window: 20 * time.Millisecond, SMLimit: 70}) }); err != nil {
		t.Fatal(err)
	}
	if got := s.status().WindowMS; got != 20 {
		t.Errorf("window %v ms, want 20", got)
	}
	if err := a.Return(lease, time.Millisecond, tokentest.WantsMore); err != nil {
		t.Fatal(err)
	}
	<-b.Revoked // 60 and 40 percent no longer fit together
}

// TestChange checks that the slice of an instance changes while its processes run, and that the next
// daemon restores the changed slice.
func TestChange(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 60, request: 0.5, limit: 0.5}))
	lease := s.lease(a)
	for body, want := range map[string]int{
		`{"quota_request":0.2,"quota_limit":0.9,"mem_limit":"2GiB"}`: http.StatusNoContent,
		`{"quota_request":0.95}`:                                     http.StatusBadRequest, // above the limit
		`{"quota_limit":1.5}`:                                        http.StatusBadRequest,
		`{"mem_limit":-1}`:                                           http.StatusBadRequest,
		`{"sm_pct":10}`:                                              http.StatusBadRequest,
		`{"turns":[[],[]]}`:                                          http.StatusBadRequest,
		`{"turns":[[{"from":1,"to":0}]]}`:                            http.StatusBadRequest,
		`{`:                                                          http.StatusBadRequest,
	} {
		if code, text := s.do("PATCH", "/v1/instances/a", body); code != want {
			t.Errorf("change to %s: got %d %s, want %d", body, code, text, want)
		}
	}
	if code, _ := s.do("PATCH", "/v1/instances/b", `{}`); code != http.StatusNotFound {
		t.Errorf("change of an unknown instance: got %d, want 404", code)
	}
	c := s.status().GPUs[0].Clients[0]
	if c.QuotaRequest != 0.2 || c.QuotaLimit != 0.9 || c.MemLimitMiB != 2048 || c.SMPct != 60 || c.PID == 0 {
		t.Errorf("status after the change: got %+v, want quotas of 0.2 and 0.9, 2048 MiB, 60%% of the SMs and a PID", c)
	}
	if err := a.Return(lease, time.Millisecond, tokentest.WantsMore); err != nil {
		t.Fatal(err)
	}
	s.lease(a)
	text, err := os.ReadFile(s.d.registry.records.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	i, err := parseRecord(text)
	if err != nil || i.reg.QuotaRequest != 0.2 || i.reg.MemLimit != 2<<30 {
		t.Errorf("record after the change: got %s, %v; want a quota request of 0.2 and 2 GiB", text, err)
	}
	if again, err := s.dial("a", 0); err != nil {
		t.Errorf("connect with the secret after the change: got %v, want no error", err)
	} else {
		again.Close()
	}
}

func TestUnregisterGatesProcesses(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	s.lease(a)
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNoContent {
		t.Fatalf("unregister instance a: got %d, want 204", code)
	}
	<-a.Closed
	if atomic.LoadUint32(&a.Slot().Gate) != 0 {
		t.Error("gate of a process of a removed instance: got open, want closed")
	}
	if _, err := s.dial("a", 0); err == nil {
		t.Error("hello of a process of a removed instance: got no error, want a refusal")
	}
	if left, _ := filepath.Glob(filepath.Join(s.d.registry.records.dir, "*")); len(left) != 0 {
		t.Errorf("records after the removal: got %v, want none", left)
	}
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNotFound {
		t.Errorf("unregister instance a again: got %d, want 404", code)
	}
}

// FuzzControl sends arbitrary requests to the control socket's handlers. An error answer must have a
// message, every accepted registration must be removable, and the status must remain available.
func FuzzControl(f *testing.F) {
	for _, seed := range []string{
		`{"instance":"a","secret":"s","gpu":"sim","sm_pct":24,"quota_request":0.3,"quota_limit":0.8,"mem_limit":"1GiB"}`,
		`{"instance":"a","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1,"turns":[{"from":0,"to":1}],"owner_pid":1}`,
		`{"instance":"a","secret":"s","gpu":"0","sm_pct":1,"quota_request":1,"quota_limit":1,"more":[{"gpu":"1","sm_pct":1,"quota_request":1,"quota_limit":1}]}`,
		`{"instance":"token.sock","secret":"s","gpu":"sim","sm_pct":1e-9,"quota_request":1e-9,"quota_limit":1}`,
		`{"sm_pct":1e999}`, `[]`, `{`, "", "null", `{"instance":"../../x"}`, `{"mem_limit":-1}`, `{"slo_ms":-1}`,
	} {
		f.Add("POST", "/v1/instances", seed)
	}
	f.Add("DELETE", "/v1/instances/a", "")
	f.Add("PATCH", "/v1/instances/a", `{"quota_request":0.2,"quota_limit":0.9,"mem_limit":"2GiB","turns":[[{"from":0,"to":1}]]}`)
	f.Add("GET", "/v1/status", "x")
	d, err := Open(Config{Socket: filepath.Join(runDir(f), "token.sock")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.chassis.Close(); _ = d.sessions.common.Close(); d.shutDown(); d.running.Wait() })
	handler := d.control()
	do := func(method, path, body string) *httptest.ResponseRecorder {
		r, err := http.NewRequest(method, "http://tokend"+path, strings.NewReader(body))
		if err != nil {
			return nil // not a valid HTTP request
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		w := do(method, path, body)
		if w == nil {
			return
		}
		var problem wire.Problem
		switch {
		case w.Code == http.StatusInternalServerError && !strings.Contains(w.Body.String(), "instance's folder"):
			t.Errorf("%s %s %q: got %d %s, want no status 500 but for the instance's folder", method, path, body, w.Code, w.Body)
		case w.Code >= 400 && w.Header().Get("Content-Type") == "application/json" &&
			(json.Unmarshal(w.Body.Bytes(), &problem) != nil || problem.Message == ""):
			t.Errorf("%s %s %q: got %d %s, want a message", method, path, body, w.Code, w.Body)
		}
		var status wire.Status
		if err := json.Unmarshal(do("GET", "/v1/status", "").Body.Bytes(), &status); err != nil {
			t.Fatalf("status after %s %s %q: %v", method, path, body, err)
		}
		for _, g := range status.GPUs {
			for _, c := range g.Clients {
				if w := do("DELETE", "/v1/instances/"+c.Instance, ""); w.Code != http.StatusNoContent && w.Code != http.StatusNotFound {
					t.Errorf("remove instance %s: got %d %s, want 204 or 404", c.Instance, w.Code, w.Body)
				}
			}
		}
		if len(d.registry.instances) != 0 {
			t.Errorf("instances after %q and the removal of all: got %d, want 0", body, len(d.registry.instances))
		}
	})
}
