package gateway

import (
	"fmt"
	"net/http"
	"testing"
)

// TestCredentialsStayHere: no function sees the user and the password of the gateway,
// whether calls need them or not; it sees all other credentials.
func TestCredentialsStayHere(t *testing.T) {
	const (
		own   = "Basic dTpw" // u:p
		other = "Basic dTpx"
	)
	for _, calls := range []bool{false, true} {
		seen := make(chan string, 1)
		async := withAsync(t)
		w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				seen <- fmt.Sprint(r.Header["Authorization"], r.Header["Proxy-Authorization"])
			}
		}), func(c *Config) {
			async(c)
			c.Auth, c.AuthFunctions = NewCredentials("u", "p"), calls
		})
		w.apply(fn("f"))
		for _, c := range []struct {
			headers []string
			want    string
		}{
			{[]string{"Authorization", own}, "[] []"},
			{[]string{"Authorization", "basic  dTpw "}, "[] []"},
			{[]string{"Authorization", other, "Authorization", own}, "[] []"},
			{[]string{"Authorization", own, "Proxy-Authorization", own}, "[] []"},
			{[]string{"Authorization", other}, "[" + other + "] []"},
			{[]string{"Authorization", "Bearer dTpw"}, "[Bearer dTpw] []"},
		} {
			for path, body := range map[string]string{"/function/f": "", "/async-function/f": "", "/v2/models/f/infer": "", "/v1/completions": `{"model": "f"}`} {
				a := w.do("POST", path, body, c.headers...)
				if calls && c.want != "[] []" {
					if a.status != 401 {
						t.Errorf("%s with %v: %d, want 401", path, c.headers, a.status)
					}
				} else if got := <-seen; a.status/100 != 2 || got != c.want {
					t.Errorf("%s with %v: %d, and the function saw %s, want %s", path, c.headers, a.status, got, c.want)
				}
			}
		}
	}
}
