package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Invoker sends calls to running instances. It rejects a call to a container that has ended, because
// another container may use its port by now; the embedded Invoker checks processes itself. It also
// unparks instances that a killed gateway has left parked.
type Invoker struct {
	ports.Invoker
	Launcher *Launcher
	Unpark   func(ctx context.Context, id string) error
}

// Invoke implements ports.Invoker.
func (i *Invoker) Invoke(ctx context.Context, r *instance.Record, c ports.Call) (*http.Response, error) {
	if r.Handle.Runtime == instance.Docker {
		if state, err := i.Launcher.State(ctx, r.Handle); err == nil && !state.Running {
			return nil, &ports.CallError{Progress: ports.NotConnected, Err: fmt.Errorf("its container: %s", state.Detail)}
		}
	}
	if r.Owner == instance.Gateway {
		if err := i.Unpark(ctx, r.ID); err != nil && !ports.Unavailable(err) {
			return nil, &ports.CallError{Progress: ports.NotConnected, Err: err}
		}
	}
	return i.Invoker.Invoke(ctx, r, c)
}

// NotConnected reports whether a call failed because the instance does not accept connections.
func NotConnected(err error) bool {
	var failed *ports.CallError
	return errors.As(err, &failed) && failed.Progress == ports.NotConnected
}

// RestartHint is the hint for the user after instances have ended.
const RestartHint = "'gfaas ps' lists the instances; 'gfaas down' and then 'gfaas up' restart them"

// EndedError reports an instance that ended during a call.
type EndedError struct {
	ID, Detail string // Detail describes how it ended, and may be empty
	Log        []byte // the last lines of its output
}

func (e *EndedError) Error() string {
	how := ""
	if e.Detail != "" {
		how = " (" + e.Detail + ")"
	}
	return fmt.Sprintf("instance %s has ended%s without an answer%s", e.ID, how, ports.Printed(e.Log))
}

// Hint returns the next step for the user.
func (e *EndedError) Hint() string { return RestartHint }

const (
	// runtimeLag bounds how much later a runtime notices that an instance has ended than its clients,
	// whose connections break.
	runtimeLag     = 500 * time.Millisecond
	endedPollPause = 20 * time.Millisecond
)

// ExplainFailure returns the error about a failed call: an *EndedError if the runtime reports that the
// instance has ended, and the cause otherwise. If the instance had accepted the connection, it polls
// the runtime for up to runtimeLag.
func ExplainFailure(ctx context.Context, l *Launcher, r instance.Record, cause error) error {
	deadline, text := time.Now().Add(runtimeLag), "instance %s: %w"
	if NotConnected(cause) {
		deadline, text = time.Now(), "instance %s does not accept connections: %w"
	}
	for ctx.Err() == nil {
		state, err := l.State(ctx, r.Handle)
		if err != nil || state.Running && !time.Now().Before(deadline) {
			break
		}
		if !state.Running {
			ended := &EndedError{ID: r.ID}
			if state.Detail != "ended" {
				ended.Detail = state.Detail
			}
			ended.Log, _ = ports.Text(l.Logs(ctx, r, ports.LogOptions{Tail: logLines})) // report the cause even without the log
			return ended
		}
		time.Sleep(endedPollPause)
	}
	return fmt.Errorf(text, r.ID, cause)
}
