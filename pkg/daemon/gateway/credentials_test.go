package gateway

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
)

// TestGatewayCredentialsAreNotPassedOn checks that no function receives the gateway's user
// and password, whether calls require them (Config.AuthFunctions) or not. All other
// credentials reach the function.
func TestGatewayCredentialsAreNotPassedOn(t *testing.T) {
	const (
		own   = "Basic dTpw" // u:p, the gateway's
		other = "Basic dTpx" // u:q
	)
	for _, authFunctions := range []bool{false, true} {
		seen := make(chan string, 1)
		setAsync := withAsync(t)
		w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				seen <- fmt.Sprint(r.Header["Authorization"], r.Header["Proxy-Authorization"])
			}
		}), func(c *Config) {
			setAsync(c)
			c.Auth, c.AuthFunctions = api.NewCredentials("u", "p"), authFunctions
		})
		w.apply(fn("f"))
		for _, c := range []struct {
			headers    []string
			authorized bool
			want       string // the headers that the function receives: Authorization and Proxy-Authorization
		}{
			{[]string{"Authorization", own}, true, "[] []"},
			{[]string{"Authorization", "Basic  dTpw"}, true, "[] []"},
			{[]string{"Authorization", "basic  dTpw "}, true, "[] []"},
			{[]string{"Authorization", other, "Authorization", own}, true, "[] []"},
			{[]string{"Authorization", own, "Proxy-Authorization", own}, true, "[] []"},
			{[]string{"Authorization", other}, false, "[" + other + "] []"},
			{[]string{"Authorization", "Bearer dTpw"}, false, "[Bearer dTpw] []"},
			{[]string{"Authorization", ""}, false, "[] []"},
			{nil, false, "[] []"},
		} {
			for _, r := range []struct {
				path, body string
				status     int
			}{
				{"/function/f", "", 200}, {"/async-function/f", "", 202}, {"/v2/models/f/infer", "", 200}, {"/v1/completions", `{"model": "f"}`, 200},
			} {
				a := w.do("POST", r.path, r.body, c.headers...)
				if authFunctions && !c.authorized {
					if a.status != 401 {
						t.Errorf("%s with %v, credentials required: got status %d, want 401", r.path, c.headers, a.status)
					}
				} else if got := <-seen; a.status != r.status || got != c.want {
					t.Errorf("%s with %v, credentials required: %v: got status %d and headers %s, want %d and %s",
						r.path, c.headers, authFunctions, a.status, got, r.status, c.want)
				}
			}
		}
	}
}
