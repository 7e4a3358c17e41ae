package swarm

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Engines that are too old, not managers, or without the network are refused with the next step.
func TestNewRefuses(t *testing.T) {
	for _, c := range []struct{ name, version, info, network, want, hint string }{
		{"old engine", "1.41", ``, ``, "version 1.41 of the API", "Docker 25"},
		{"worker", "1.45", `{"Swarm": {"LocalNodeState": "active"}}`, ``, "not a manager", "manager"},
		{"no swarm", "1.45", `{"Swarm": {"LocalNodeState": "inactive"}}`, ``, "inactive", "docker swarm init"},
		{"no network", "1.45", `{"Swarm": {"ControlAvailable": true}}`, ``, "no network gfaas", "docker network create"},
		{"bridge", "1.45", `{"Swarm": {"ControlAvailable": true}}`, `{"Driver": "bridge"}`, "not an attachable overlay", "docker network create"},
		{"not attachable", "1.45", `{"Swarm": {"ControlAvailable": true}}`, `{"Driver": "overlay"}`, "not an attachable overlay", "docker network create"},
		{"manager", "1.45", `{"Swarm": {"ControlAvailable": true}}`, `{"Driver": "overlay", "Attachable": true}`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", c.version)
				w.Header().Set("Content-Type", "application/json")
				switch path := r.URL.Path; {
				case strings.HasSuffix(path, "/info"):
					fmt.Fprint(w, c.info)
				case strings.Contains(path, "/networks/") && c.network != "":
					fmt.Fprint(w, c.network)
				case strings.Contains(path, "/networks/"):
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"message": "network gfaas not found"}`)
				}
			}))
			defer server.Close()
			t.Setenv("DOCKER_HOST", "tcp://"+server.Listener.Addr().String())
			r, err := New(t.Context(), Config{Network: DefaultNetwork})
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				_ = r.Close()
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !ports.Unavailable(err) || !strings.Contains(ports.Hint(err), c.hint) {
				t.Errorf("error %v, hint %q; want an unavailable one with %q and %q", err, ports.Hint(err), c.want, c.hint)
			}
		})
	}
}
