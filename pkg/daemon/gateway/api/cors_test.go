package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestParseOrigin checks that origins have the form in which browsers send them.
func TestParseOrigin(t *testing.T) {
	for text, want := range map[string]string{
		"*": "*", "https://chat.example.com": "https://chat.example.com", "HTTPS://Chat.Example.COM": "https://chat.example.com",
		"http://localhost:3000": "http://localhost:3000", "http://h:80": "http://h", "https://h:443": "https://h", "http://h:443": "http://h:443", "http://h:0080": "http://h",
		"http://127.0.0.1:8080": "http://127.0.0.1:8080", "http://[::1]:3000": "http://[::1]:3000", "http://[0:0::1]": "http://[::1]",
		"app://obsidian.md": "app://obsidian.md", "chrome-extension://abcdefgh": "chrome-extension://abcdefgh", "tauri://localhost": "tauri://localhost",
		"": "", "null": "", "chat.example.com": "", "https://": "", "file://": "", "file:///": "", "https://h/": "", "https://h/x": "", "https://h?x": "", "https://h#x": "",
		"https://u@h": "", "https://u:p@h": "", "https://*.example.com": "", "**": "", "https://h:": "", "https://h:port": "", "https://h:65536": "", "https://:80": "",
		"https://a,https://b": "", "https://h h": "", "https://ä.example": "", "https://h\n": "", "http://[::1": "", "http://[fe80::1%25eth0]": "", "://h": "", "1://h": "",
	} {
		got, err := ParseOrigin(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("origin %q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// FuzzParseOrigin checks that an accepted origin is one token that a browser could send, that
// parsing it again changes nothing, and that it admits exactly itself.
func FuzzParseOrigin(f *testing.F) {
	for _, seed := range []string{"*", "https://a.example:8443", "http://[::1]:80", "app://x", "https://*.a", "https://a/", "null", "HTTP://A:00080"} {
		f.Add(seed, "https://a.example:8443")
	}
	f.Fuzz(func(t *testing.T, text, origin string) {
		got, err := ParseOrigin(text)
		if err != nil {
			return
		}
		if again, err := ParseOrigin(got); err != nil || again != got {
			t.Errorf("origin %q: got %q, and from that %q, %v", text, got, again, err)
		}
		if strings.ContainsAny(got, " ,;\r\n\t\"<>") {
			t.Errorf("origin %q: got %q, want one token", text, got)
		}
		if got == AnyOrigin {
			return
		}
		if u, err := url.Parse(got); err != nil || u.Scheme+"://"+u.Host != got {
			t.Errorf("origin %q: got %q, want a scheme and a host", text, got)
		}
		if admitted := (Origins{got}).admits(origin); (admitted != "") != (origin == got) {
			t.Errorf("origin %q admits %q as %q", got, origin, admitted)
		}
	})
}

// FuzzVary checks that addVary adds a name once, and keeps the others.
func FuzzVary(f *testing.F) {
	f.Add("Accept, origin", "*")
	f.Add("", "Origin-X")
	f.Fuzz(func(t *testing.T, a, b string) {
		h := http.Header{"Vary": {a, b}}
		addVary(h, "Origin")
		n := len(h["Vary"])
		if addVary(h, "Origin"); len(h["Vary"]) != n || n < 2 || h["Vary"][0] != a || h["Vary"][1] != b {
			t.Errorf("Vary %q, %q: got %q", a, b, h["Vary"])
		}
	})
}
