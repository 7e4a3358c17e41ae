package host

import (
	"context"
	"errors"
	"net/http"
	"os"
	"syscall"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// dials is an Invoker whose calls fail with the errors, in turn, and are then answered.
type dials struct {
	errors []error
	n      int
}

func (d *dials) Invoke(context.Context, *instance.Record, ports.Call) (*http.Response, error) {
	d.n++
	if d.n > len(d.errors) {
		return &http.Response{StatusCode: http.StatusOK}, nil
	}
	return nil, d.errors[d.n-1]
}

// A call that cannot connect in time asks the managers again: it is repeated while they want the instance to run, and
// otherwise goes to another instance.
func TestFleetInvoker(t *testing.T) {
	slow := &ports.CallError{Progress: ports.NotTried, Err: os.ErrDeadlineExceeded}
	descriptors := &ports.CallError{Progress: ports.NotTried, Err: syscall.EMFILE}
	sent := &ports.CallError{Progress: ports.Sent, Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		name     string
		errors   []error
		lost     int // number of the question that finds the instance lost; 0: none
		calls    int
		answered bool
		progress ports.Progress
	}{
		{"connects at last", []error{slow, slow}, 0, 3, true, 0},
		{"never connects", []error{slow, slow, slow}, 0, 3, false, ports.NotTried},
		{"its node is lost", []error{slow, slow}, 2, 1, false, ports.NotConnected},
		{"no descriptors", []error{descriptors}, 0, 1, false, ports.NotTried},
		{"sent", []error{sent}, 0, 1, false, ports.Sent},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner, asked := &dials{errors: c.errors}, 0
			invoker := &fleetInvoker{inner, func(context.Context, instance.Handle) error {
				if asked++; asked == c.lost {
					return errors.New("its node is not ready")
				}
				return nil
			}}
			answer, err := invoker.Invoke(t.Context(), &instance.Record{}, ports.Call{})
			failed, _ := errors.AsType[*ports.CallError](err)
			if inner.n != c.calls || (answer != nil) != c.answered || !c.answered && (failed == nil || failed.Progress != c.progress) {
				t.Errorf("%d calls, answer %v, error %v; want %d, %v and %v", inner.n, answer != nil, err, c.calls, c.answered, c.progress)
			}
		})
	}
}
