package token

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt: a line is a time and an event, the
// lines indented under it are what the scheduler does about it.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", play)
}

// play runs a transcript and prints it anew.
func play(text string) (string, error) {
	s := New(Config{}, 0)
	return transcript.Lines(text, func(line string) (did []string, err error) {
		at, ev, err := parseEvent(line)
		if err != nil {
			return nil, err
		}
		for _, a := range s.Step(at, []Event{ev}, nil) {
			did = append(did, describe(a))
		}
		if strings.HasSuffix(line, "?") {
			all := s.Snapshot()
			for _, c := range all.Clients {
				did = append(did, fmt.Sprintf("= client %v of %s %v used %.3f debt %v: %s",
					c.Client, c.Instance, c.State, c.Used, all.Instance(c.Instance).Debt, c.Why))
			}
		}
		return did, nil
	})
}

func describe(a Action) string {
	switch a := a.(type) {
	case Grant:
		return fmt.Sprintf("grant %v lease %d: %s", a.Client, a.Lease, a.Reason)
	case Revoke:
		return fmt.Sprintf("revoke %v lease %d: %s", a.Client, a.Lease, a.Reason)
	case WakeAt:
		return fmt.Sprintf("wake at %v: %s", a.At, a.Reason)
	}
	return fmt.Sprintf("%+v", a)
}

// parseEvent reads lines like `10ms request 1`.
func parseEvent(line string) (at time.Duration, ev Event, err error) {
	var when, verb, rest string
	line = strings.TrimSuffix(line, "?")
	parts := strings.SplitN(strings.TrimSpace(line), " ", 3)
	when = parts[0]
	if len(parts) > 1 {
		verb = parts[1]
	}
	if len(parts) > 2 {
		rest = parts[2]
	}
	if at, err = time.ParseDuration(when); err != nil {
		return 0, nil, err
	}
	var id ClientID
	var name string
	switch verb {
	case "instance":
		ev, err := parseInstance(rest)
		return at, ev, err
	case "client":
		_, err = fmt.Sscanf(rest, "%d of %s", &id, &name)
		return at, AddClient{id, name}, err
	case "request":
		_, err = fmt.Sscanf(rest, "%d", &id)
		return at, Request{id}, err
	case "return":
		var lease uint32
		var used, more string
		_, err = fmt.Sscanf(rest, "%d lease %d used %s %s", &id, &lease, &used, &more)
		d, bad := time.ParseDuration(used)
		if err == nil {
			err = bad
		}
		return at, Return{id, lease, d, more == "more"}, err
	case "suspend":
		_, err = fmt.Sscanf(rest, "%d", &id)
		return at, Suspend{id}, err
	case "gone":
		_, err = fmt.Sscanf(rest, "%d", &id)
		return at, RemoveClient{id}, err
	case "forget":
		return at, RemoveInstance{rest}, nil
	case "wake":
		return at, Wake{}, nil
	case "configure":
		c := Configure{}
		var window string
		if _, err = fmt.Sscanf(rest, "%s sm %g", &window, &c.SMLimit); err == nil {
			c.Window, err = time.ParseDuration(window)
		}
		return at, c, err
	}
	return 0, nil, fmt.Errorf("unknown event %q", verb)
}

// parseInstance reads a slice like `a sm 50 quota 0.3 0.8 turns 0-0.3`.
func parseInstance(text string) (a AddInstance, err error) {
	slice, turns, _ := strings.Cut(text, " turns ")
	if _, err := fmt.Sscanf(slice, "%s sm %g quota %g %g", &a.Instance, &a.Slice.SMPct, &a.Slice.QuotaRequest, &a.Slice.QuotaLimit); err != nil {
		return a, err
	}
	for part := range strings.FieldsSeq(turns) {
		var t gpu.Turn
		if _, err := fmt.Sscanf(part, "%g-%g", &t.From, &t.To); err != nil {
			return a, err
		}
		a.Turns = append(a.Turns, t)
	}
	return a, nil
}
