package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/grant"
)

// The error of an agent contains the beginning of its message. The gateway logs it.
func TestLongProblem(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"message": "no token daemon` + strings.Repeat("!", 1<<20) + `"}`))
	}))
	defer web.Close()
	c := NewClient(grant.GenerateKey())
	defer c.Close()
	_, err := c.Status(t.Context(), "n", strings.TrimPrefix(web.URL, "http://"))
	if err == nil || !strings.Contains(err.Error(), "node n: no token daemon!") || len(err.Error()) > 2*maxMessage {
		t.Errorf("error of %d bytes: %.100v", len(err.Error()), err)
	}
}
