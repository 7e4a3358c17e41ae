package token

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// FuzzControl sends any body to the control socket's handlers. Each answer is
// one of theirs, a registration that is accepted can be undone, and the daemon
// still tells its status.
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
	f.Add("GET", "/v1/status", "x")
	d, err := Open(Config{Socket: filepath.Join(runDir(f), "token.sock")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.chassis.Close(); _ = d.common.listener.Close(); d.shutDown(); d.conns.Wait() })
	handler := d.controlHandler()
	do := func(method, path, body string) *httptest.ResponseRecorder {
		r, err := http.NewRequest(method, "http://tokend"+path, strings.NewReader(body))
		if err != nil {
			return nil // no HTTP
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
			t.Errorf("%s %s %q: %d %s", method, path, body, w.Code, w.Body)
		case w.Code >= 400 && w.Header().Get("Content-Type") == "application/json" &&
			(json.Unmarshal(w.Body.Bytes(), &problem) != nil || problem.Message == ""):
			t.Errorf("%s %s %q: %d without a message: %s", method, path, body, w.Code, w.Body)
		}
		var status wire.Status
		if err := json.Unmarshal(do("GET", "/v1/status", "").Body.Bytes(), &status); err != nil {
			t.Fatalf("status after %s %s %q: %v", method, path, body, err)
		}
		for _, g := range status.GPUs {
			for _, c := range g.Clients {
				if w := do("DELETE", "/v1/instances/"+c.Instance, ""); w.Code != http.StatusNoContent && w.Code != http.StatusNotFound {
					t.Errorf("remove %s: %d %s", c.Instance, w.Code, w.Body)
				}
			}
		}
		if len(d.instances) != 0 {
			t.Errorf("%d instances are left after %q", len(d.instances), body)
		}
	})
}
