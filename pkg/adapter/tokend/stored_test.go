package tokend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestCountStored checks that memory counts until either side ends the count, and
// that a refusal has a status.
func TestCountStored(t *testing.T) {
	counting, stop := make(chan bool, 1), make(chan bool)
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		var s wire.Stored
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil || r.Method != "POST" || r.URL.Path != "/v1/stored" {
			t.Errorf("request: got %s %s, %v; want POST /v1/stored", r.Method, r.URL.Path, err)
		}
		if s.PID != http.StatusOK {
			w.WriteHeader(s.PID)
			if s.PID != http.StatusNoContent {
				fmt.Fprint(w, `{"message":"no"}`)
			}
			return
		}
		_, _ = r.Body.Read(make([]byte, 1)) // EOF
		fmt.Fprintln(w, `{"instance":"a"}`)
		_ = http.NewResponseController(w).Flush()
		counting <- true
		select {
		case <-r.Context().Done():
		case <-stop:
		}
		<-counting
	})
	ask := func(status int) (*Count, error) {
		return c.CountStored(t.Context(), wire.Stored{PID: status, GPU: "sim", Bytes: 1})
	}
	if count, err := ask(http.StatusNoContent); count != nil || err != nil {
		t.Errorf("process in no instance: got %v, %v; want neither a count nor an error", count, err)
	}
	for _, status := range []int{http.StatusConflict, http.StatusGone, http.StatusServiceUnavailable} {
		var e *Error
		if count, err := ask(status); count != nil || !errors.As(err, &e) || e.Status != status || err.Error() != "no" ||
			e.Unavailable() != (status == http.StatusServiceUnavailable) {
			t.Errorf("status %d: got %v, %v; want an error with that status", status, count, err)
		}
	}
	count, err := ask(http.StatusOK)
	if err != nil || count.Instance != "a" {
		t.Fatalf("count: got %+v, %v; want instance a", count, err)
	}
	select {
	case <-count.Done():
		t.Error("count: got Done, want it to last")
	default:
	}
	if count.Close(); len(counting) != 0 {
		t.Error("closed count: the daemon still counts, want it to stop")
	}
	if count, err = ask(http.StatusOK); err != nil {
		t.Fatal(err)
	}
	stop <- true
	<-count.Done()
	count.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if count, err := c.CountStored(ctx, wire.Stored{PID: http.StatusOK}); count != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("request without time: got %v, %v; want %v", count, err, context.DeadlineExceeded)
	}
	if count, err := Dial(t.TempDir()).CountStored(t.Context(), wire.Stored{}); count != nil || !ports.Unavailable(err) {
		t.Errorf("request without a daemon: got %v, %v; want an error that is Unavailable", count, err)
	}
}
