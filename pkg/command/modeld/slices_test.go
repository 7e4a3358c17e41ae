package modeld

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	tokens "github.com/gfaas/gfaas/pkg/wire"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// TestSlicesFor: the token daemon of the socket's run directory takes precedence over the user's. Refusals have a
// code.
func TestSlicesFor(t *testing.T) {
	dir, err := os.MkdirTemp("", "modeld") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(run string, status int) {
		if err := os.MkdirAll(run, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(run, "token.sock"))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var of tokens.Stored
			if err := json.NewDecoder(r.Body).Decode(&of); err != nil || of.PID != 7 {
				t.Errorf("request to the token daemon: got %+v, %v; want PID 7", of, err)
			}
			w.WriteHeader(status)
			fmt.Fprint(w, `{"message":"no"}`)
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	own, users := filepath.Join(dir, "own"), filepath.Join(dir, "users")
	at(own, http.StatusConflict)
	at(users, http.StatusGone)
	t.Setenv("GFAAS_RUN_DIR", users)
	for socket, code := range map[string]string{
		filepath.Join(own, "model.sock"):                  wire.CodeSliceMemory,
		filepath.Join(own, "models", "1", "model.sock"):   wire.CodeSliceMemory,
		filepath.Join(dir, "none", "model.sock"):          wire.CodeDenied,
		filepath.Join(users, "models", "1", "model.sock"): wire.CodeDenied,
	} {
		var refused *wire.Error
		if count, err := slicesFor(socket).Count(t.Context(), tokens.Stored{PID: 7}); count != nil || !errors.As(err, &refused) || refused.Code != code {
			t.Errorf("%s: %v, %v, want %s", socket, count, err, code)
		}
	}
	t.Setenv("GFAAS_RUN_DIR", filepath.Join(dir, "none"))
	var gone interface{ Unavailable() bool }
	if count, err := slicesFor(filepath.Join(dir, "model.sock")).Count(t.Context(), tokens.Stored{PID: 7}); count != nil || !errors.As(err, &gone) || !gone.Unavailable() {
		t.Errorf("count without a token daemon: got %v, %v; want an error that says that it is unavailable", count, err)
	}
}
