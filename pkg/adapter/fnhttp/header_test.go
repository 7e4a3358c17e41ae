package fnhttp

import "testing"

func TestParseHeaders(t *testing.T) {
	got, err := ParseHeaders([]string{"content-type: text/plain", "X-A:1", "X-A: 2", "Empty:"})
	if err != nil || got.Get("Content-Type") != "text/plain" || len(got["X-A"]) != 2 || got["X-A"][1] != "2" || len(got["Empty"]) != 1 {
		t.Errorf("headers: got %v, %v; want Content-Type text/plain, two values of X-A, and an empty one", got, err)
	}
	for _, bad := range []string{"", "none", ": v", "a b: v", "a: v\r\nX: y", "ä: v"} {
		if got, err := ParseHeaders([]string{bad}); err == nil {
			t.Errorf("header %q: got %v, want an error", bad, got)
		}
	}
}
