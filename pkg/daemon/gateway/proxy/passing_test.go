package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
)

// deadlines is a caller that records whether its writes were ended.
type deadlines struct {
	*httptest.ResponseRecorder
	set bool
}

// SetWriteDeadline implements the optional method of http.ResponseController.
func (d *deadlines) SetWriteDeadline(time.Time) error { d.set = true; return nil }

// TestTimeoutEndsLaterWrites checks that the timeout of a call ends the writes that pass on an instance's answer, even
// if they begin after the timeout: a caller that does not read would block them forever. The gateway's own answer,
// which says that the call took too long, is written.
func TestTimeoutEndsLaterWrites(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		answers bool
		ends    bool
	}{
		"an interim answer":          {status: http.StatusEarlyHints, ends: true},
		"an instance's answer":       {status: http.StatusOK, answers: true, ends: true},
		"the gateway's own response": {status: http.StatusGatewayTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			caller := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			call := (&Proxy{}).newCall(nil, "id", "")
			_, call.cancel = context.WithCancelCause(t.Context())
			call.turn.Record = &instance.Record{ID: "f.1"}
			call.passing = passing{ResponseWriter: caller, call: call, answers: c.answers}
			call.late()
			if caller.set {
				t.Fatal("the timeout ended the writes before the answer began")
			}
			call.passing.WriteHeader(c.status)
			if caller.set != c.ends {
				t.Errorf("writes ended: got %v, want %v", caller.set, c.ends)
			}
		})
	}
}
