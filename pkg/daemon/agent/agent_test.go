package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

// tokens is a token daemon of node n.
type tokens struct {
	node  string
	err   error
	asked int
}

func (f *tokens) Status(context.Context) (wire.Status, error) {
	f.asked++
	return wire.Status{Node: f.node, Policy: "multi-token"}, f.err
}

func (f *tokens) Faults(context.Context) ([]wire.InstanceFault, error) {
	return []wire.InstanceFault{{Instance: "a"}}, f.err
}

func (f *tokens) Devices(context.Context) ([]wire.DeviceMemory, error) {
	return []wire.DeviceMemory{{GPU: "sim", Total: 2, Free: 1, Processes: map[int]int64{7: 1}}}, f.err
}

// ask sends a request with an Authorization header.
func ask(a *Agent, method, path, authorization, body string) (status int, text string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := grant.GenerateKey()
		daemon := &tokens{node: "n"}
		a := New(daemon, grant.TrustOf(key.Public()))
		sign := func(path string) string { return Scheme + key.SignRequest("n", path) }
		for _, tt := range []struct{ path, want string }{
			{"/v1/status", `{"node":"n","window_ms":0,"policy":"multi-token","gpus":null}`},
			{"/v1/devices", `{"gpus":[{"gpu":"sim","total":2,"free":1,"processes":{"7":1}}]}`},
		} {
			if status, text := ask(a, "GET", tt.path, sign(tt.path), ""); status != http.StatusOK || strings.TrimSpace(text) != tt.want {
				t.Errorf("GET %s: %d %s, want %s", tt.path, status, text, tt.want)
			}
		}
		var faults wire.Faults
		if status, text := ask(a, "GET", "/v1/faults", sign("/v1/faults"), ""); status != http.StatusOK || json.Unmarshal([]byte(text), &faults) != nil || len(faults.Faults) != 1 {
			t.Errorf("GET /v1/faults: %d %s, want one fault", status, text)
		}
		once, old := sign("/v1/status"), sign("/v1/status")
		if status, text := ask(a, "GET", "/v1/status", once, ""); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
		time.Sleep(grant.Skew + time.Second)
		for _, tt := range []struct {
			name, method, path, authorization, body string
			status                                  int
			want                                    string
		}{
			{"unsigned", "GET", "/v1/status", "", "", 401, "not signed"},
			{"a password", "GET", "/v1/status", "Basic eDp5", "", 401, "not signed"},
			{"another key", "GET", "/v1/status", Scheme + grant.GenerateKey().SignRequest("n", "/v1/status"), "", 401, "no trusted key"},
			{"another node", "GET", "/v1/status", Scheme + key.SignRequest("m", "/v1/status"), "", 401, "for node"},
			{"another path", "GET", "/v1/faults", sign("/v1/status"), "", 401, "another path"},
			{"a query", "GET", "/v1/status?x", sign("/v1/status"), "", 401, "another path"},
			{"expired", "GET", "/v1/status", old, "", 401, "signed at"},
			{"expired and replayed", "GET", "/v1/status", once, "", 401, "signed at"},
			{"unknown path", "GET", "/v1/instances", sign("/v1/instances"), "", 404, "unknown path"},
			{"a change", "DELETE", "/v1/instances/a", sign("/v1/instances/a"), "", 405, "expected GET"},
			{"a body", "GET", "/v1/status", sign("/v1/status"), "x", 405, "without a body"},
		} {
			status, text := ask(a, tt.method, tt.path, tt.authorization, tt.body)
			if status != tt.status || !strings.Contains(text, tt.want) {
				t.Errorf("%s: %d %s, want %d with %q", tt.name, status, text, tt.status, tt.want)
			}
		}
		again := sign("/v1/status")
		if status, text := ask(a, "GET", "/v1/status", again, ""); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
		if status, text := ask(a, "GET", "/v1/status", again, ""); status != http.StatusUnauthorized || !strings.Contains(text, "sent before") {
			t.Errorf("replayed: %d %s", status, text)
		}
		daemon.err = errors.New("no token daemon")
		if status, text := ask(a, "GET", "/v1/devices", sign("/v1/devices"), ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "no token daemon") {
			t.Errorf("without a daemon: %d %s", status, text)
		}
	})
}

// Without trusted keys, a token daemon does not know its node. Unsigned requests do not reach it.
func TestAgentWithoutName(t *testing.T) {
	key := grant.GenerateKey()
	daemon := &tokens{}
	a := New(daemon, grant.TrustOf(key.Public()))
	if status, _ := ask(a, "GET", "/v1/status", "", ""); status != http.StatusUnauthorized || daemon.asked > 0 {
		t.Errorf("unsigned: status %d after %d requests to the daemon, want 401 after none", status, daemon.asked)
	}
	if status, text := ask(a, "GET", "/v1/status", Scheme+key.SignRequest("", "/v1/status"), ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "--trust") {
		t.Errorf("%d %s, want 503 with --trust", status, text)
	}
}
