package launch

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name string
		of   []Candidate
		want []int // for the random numbers 0, 0.25, 0.5 and almost 1
	}{
		{"none", nil, []int{-1, -1, -1, -1}},
		{"the only one", []Candidate{{Capacity: 3}}, []int{0, 0, 0, 0}},
		{"of unknown capacity", []Candidate{{}, {}}, []int{1, 1, 1, 1}},
		{"equals", []Candidate{{Capacity: 5}, {Capacity: 5}}, []int{0, 0, 1, 1}},
		{"in proportion", []Candidate{{Capacity: 10}, {Capacity: 30}}, []int{0, 1, 1, 1}},
		{"one that answers none", []Candidate{{Capacity: 1}, {}, {Capacity: 1}}, []int{0, 0, 2, 2}},
	} {
		var got []int
		for _, lot := range []float64{0, 0.25, 0.5, 0.9999} {
			got = append(got, choose(c.of, func() float64 { return lot }))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: chose %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRepeatable(t *testing.T) {
	key := http.Header{"Idempotency-Key": {"k"}}
	for _, c := range []struct {
		progress   ports.Progress
		method     string
		header     http.Header
		replayable bool
		repeats    int
		want       Repeat
	}{
		{ports.NotTried, "POST", nil, false, 0, Elsewhere},
		{ports.NotConnected, "POST", nil, false, 0, Elsewhere},
		{ports.NotConnected, "POST", nil, true, 1, Elsewhere},
		{ports.NotSent, "POST", nil, true, 0, Elsewhere},
		{ports.NotSent, "GET", nil, false, 0, NoRepeat},
		{ports.Sent, "POST", nil, true, 0, NoRepeat},
		{ports.Sent, "", nil, true, 0, NoRepeat},
		{ports.Sent, "PATCH", nil, true, 0, NoRepeat},
		{ports.Sent, "POST", key, true, 0, RepeatOnce},
		{ports.Sent, "POST", key, false, 0, NoRepeat},
		{ports.Sent, "POST", key, true, 1, NoRepeat},
		{ports.Sent, "GET", nil, true, 0, RepeatOnce},
		{ports.Sent, "HEAD", nil, true, 0, RepeatOnce},
		{ports.Sent, "OPTIONS", nil, true, 0, RepeatOnce},
		{ports.Sent, "PUT", nil, true, 0, RepeatOnce},
		{ports.Sent, "DELETE", nil, true, 0, RepeatOnce},
		{ports.Sent, "DELETE", nil, true, 1, NoRepeat},
		{ports.Answered, "GET", key, true, 0, NoRepeat},
	} {
		if got := Repeatable(c.progress, c.method, c.header, c.replayable, c.repeats); got != c.want {
			t.Errorf("Repeatable for %+v: got %v, want %v", c, got, c.want)
		}
	}
}

// script is an Invoker that returns each instance's results in turn, and repeats the last one.
type script struct {
	results map[string][]any // ports.Progress, or the text of an answer
	tried   []string
	bodies  []string
}

func (s *script) Invoke(_ context.Context, r *instance.Record, c ports.Call) (*http.Response, error) {
	s.tried = append(s.tried, r.ID)
	results := s.results[r.ID]
	if len(results) > 1 {
		s.results[r.ID] = results[1:]
	}
	progress, fails := results[0].(ports.Progress)
	if fails && progress == ports.NotConnected {
		return nil, &ports.CallError{Progress: progress, Err: errors.New(r.ID)}
	}
	if c.Body != nil {
		text, _ := io.ReadAll(c.Body)
		s.bodies = append(s.bodies, string(text))
	}
	if fails {
		return nil, &ports.CallError{Progress: progress, Err: errors.New(r.ID)}
	}
	return &http.Response{Status: results[0].(string)}, nil
}

func TestCall(t *testing.T) {
	first := func() float64 { return 0 }
	for _, c := range []struct {
		name     string
		results  map[string][]any
		call     ports.Call
		once     bool // the body can be read once
		tried    string
		attempts int
		fails    ports.Progress // progress of the last failure if there is no answer
		answer   string
	}{
		{"answered", map[string][]any{"a": {"ok"}}, ports.Call{}, true, "a", 1, 0, "ok"},
		{"one refuses connections", map[string][]any{"a": {ports.NotConnected}, "b": {"ok"}}, ports.Call{}, true, "a b", 1, 0, "ok"},
		{"all refuse connections", map[string][]any{"a": {ports.NotConnected}, "b": {ports.NotConnected}}, ports.Call{}, true, "a b", 0, ports.NotConnected, ""},
		{"a new connection succeeds", map[string][]any{"a": {ports.NotSent, "ok"}}, ports.Call{}, false, "a a", 1, 0, "ok"},
		{"new connections end as well", map[string][]any{"a": {ports.NotSent}, "b": {"ok"}}, ports.Call{}, false, "a a b", 1, 0, "ok"},
		{"the body cannot be read again", map[string][]any{"a": {ports.NotSent}, "b": {"ok"}}, ports.Call{}, true, "a", 0, ports.NotSent, ""},
		{"the instance may have executed it", map[string][]any{"a": {ports.Sent}, "b": {"ok"}}, ports.Call{}, false, "a", 1, ports.Sent, ""},
		{"an idempotent call is repeated once", map[string][]any{"a": {ports.Sent}, "b": {"ok"}}, ports.Call{Method: "PUT"}, false, "a b", 2, 0, "ok"},
		{"an idempotent call is not repeated twice", map[string][]any{"a": {ports.Sent}, "b": {ports.Sent}, "c": {"ok"}}, ports.Call{Method: "PUT"}, false, "a b", 2, ports.Sent, ""},
		{"an idempotent call is repeated on the only instance", map[string][]any{"a": {ports.Sent, "ok"}}, ports.Call{Method: "PUT"}, false, "a a", 2, 0, "ok"},
		{"an idempotent call is repeated past refusing instances", map[string][]any{"a": {ports.NotConnected}, "b": {ports.Sent}, "c": {ports.NotConnected}, "d": {"ok"}},
			ports.Call{Method: "PUT"}, false, "a b c d", 2, 0, "ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{results: c.results}
			var candidates []Candidate
			for _, id := range []string{"a", "b", "c", "d"} {
				if c.results[id] != nil {
					candidates = append(candidates, Candidate{Record: instance.Record{ID: id}, Capacity: 1})
				}
			}
			repeats := 0
			caller := &Caller{Invoker: s, Random: first, OnRepeat: func(_ instance.Record, err error) {
				if err == nil {
					t.Error("OnRepeat: got no error, want the failed attempt's")
				}
				repeats++
			}}
			body := func() io.Reader { return strings.NewReader("in") }
			if c.once {
				c.call.Body, body = body(), nil
			}
			answer, err := caller.Call(t.Context(), candidates, c.call, body)
			if got := strings.Join(s.tried, " "); got != c.tried || answer.Attempts != c.attempts || repeats != len(s.tried)-1 {
				t.Errorf("tried %s in %d attempts, with %d repeats reported; want %s in %d, with %d", got, answer.Attempts, repeats, c.tried, c.attempts, len(s.tried)-1)
			}
			if answer.Instance.ID != s.tried[len(s.tried)-1] {
				t.Errorf("instance of the answer: got %s, want %s, the last that was tried", answer.Instance.ID, s.tried[len(s.tried)-1])
			}
			var failed *ports.CallError
			switch {
			case c.answer == "" && (!errors.As(err, &failed) || failed.Progress != c.fails || err.Error() != answer.Instance.ID):
				t.Errorf("error: got %v, want that of %s with the progress %v", err, answer.Instance.ID, c.fails)
			case c.answer != "" && (err != nil || answer.Status != c.answer):
				t.Errorf("answer: got %v, %v; want %s", answer, err, c.answer)
			}
			for _, text := range s.bodies {
				if text != "in" {
					t.Errorf("bodies %q, want each whole", s.bodies)
				}
			}
		})
	}
}

func TestCallGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &script{results: map[string][]any{"a": {ports.NotConnected}, "b": {"ok"}}}
	caller := &Caller{Invoker: s, Random: rand.Float64}
	_, err := caller.Call(ctx, []Candidate{{Record: instance.Record{ID: "a"}, Capacity: 1}, {Record: instance.Record{ID: "b"}}}, ports.Call{}, nil)
	if err == nil || len(s.tried) != 1 {
		t.Errorf("call whose context is cancelled: tried %v with the error %v, want one instance and an error", s.tried, err)
	}
	if a, err := caller.Call(t.Context(), nil, ports.Call{}, nil); a.Response != nil || err == nil {
		t.Errorf("call without candidates: got %v, %v; want an error", a, err)
	}
}
