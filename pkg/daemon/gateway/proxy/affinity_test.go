package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
)

func TestAffinityOf(t *testing.T) {
	for _, c := range []struct {
		by     function.Affinity
		header http.Header
		want   string
	}{
		{"", http.Header{"Cookie": {"gfaas-instance=f.1"}}, ""},
		{"cookie", http.Header{}, ""},
		{"cookie", http.Header{"Cookie": {"gfaas-instance=f.1"}}, "f.1"},
		{"cookie", http.Header{"Cookie": {"a=b;gfaas-instance=f.1 ;c=d"}}, "f.1"},
		{"cookie", http.Header{"Cookie": {"a=b", "gfaas-instance=f.1; gfaas-instance=f.2"}}, "f.1"},
		{"cookie", http.Header{"Cookie": {"xgfaas-instance=f.1; Gfaas-Instance=f.2; gfaas-instance"}}, ""},
		{"cookie", http.Header{"Cookie": {"gfaas-instance=" + strings.Repeat("x", 256)}}, strings.Repeat("x", 256)},
		{"cookie", http.Header{"Cookie": {"gfaas-instance=" + strings.Repeat("x", 257)}}, ""},
		{"header:x-session-id", http.Header{"X-Session-Id": {"a b", "c"}, "Cookie": {"gfaas-instance=f.1"}}, "a b"},
		{"header:X-Session-Id", http.Header{"X-Session-Id": {strings.Repeat("x", 257)}}, ""},
	} {
		if got := affinityOf(c.by, c.header); got != c.want {
			t.Errorf("%s of %.80v: got %q, want %q", c.by, c.header, got, c.want)
		}
	}
	for path, want := range map[string]string{"/function/f": "/function/f", "/function/f/": "/function/f", "/function/f/a/b": "/function/f", "/function/": "", "/function": "", "/v1/x": "", "/functions/f": ""} {
		if got := cookiePath(path); got != want {
			t.Errorf("path of the cookie for %s: got %q, want %q", path, got, want)
		}
	}
}

// FuzzCookie compares cookieIn with net/http for cookies that net/http accepts.
func FuzzCookie(f *testing.F) {
	for _, seed := range []string{"gfaas-instance=f.1", "a=b; gfaas-instance=f.1; gfaas-instance=f.2", "gfaas-instance=;=;;", "gfaas-instance=\"a\"", "gfaas-instance=a=b"} {
		f.Add(seed, "x=y")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		r := http.Request{Header: http.Header{"Cookie": {first, second}}}
		got := cookieIn(r.Header)
		if strings.Contains(got, ";") || got != "" && !strings.Contains(first+";"+second, AffinityCookie+"="+got) {
			t.Errorf("cookie in %q, %q: got %q, want a value in them", first, second, got)
		}
		if parsed := r.CookiesNamed(AffinityCookie); strings.Count(first+";"+second, AffinityCookie) == 1 && len(parsed) == 1 && !parsed[0].Quoted && got != parsed[0].Value {
			t.Errorf("cookie in %q, %q: got %q, want %q", first, second, got, parsed[0].Value)
		}
	})
}
