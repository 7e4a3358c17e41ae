package async

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
)

// TestSameID checks that an ID is valid per function and path. A repetition of a call is
// not run, a call of another function or path with the same ID is run, and a different call
// of the same function and path is refused.
func TestSameID(t *testing.T) {
	request := func(change func(*Request)) Request {
		r := Request{ID: "a", Function: "f", Path: "/x", Query: "q=1", Header: http.Header{"X-Callback-Url": {"http://receiver/x"}}, Body: strings.NewReader("body")}
		if change != nil {
			change(&r)
		}
		return r
	}
	body := func(text string) func(*Request) { return func(r *Request) { r.Body = strings.NewReader(text) } }
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   error
		runs   int32
	}{
		{"the same", nil, nil, 1},
		{"another header", func(r *Request) { r.Header.Set("Date", "today") }, nil, 1},
		{"another function", func(r *Request) { r.Function = "g" }, nil, 2},
		{"another path", func(r *Request) { r.Path = "/y" }, nil, 2},
		{"no path", func(r *Request) { r.Path = "" }, nil, 2},
		{"function and path divided elsewhere", func(r *Request) { r.Function, r.Path = "f/x", "" }, nil, 2},
		{"another body", body("other"), ErrReused, 1},
		{"a longer body", body("body and more"), ErrReused, 1},
		{"no body", func(r *Request) { r.Body = nil }, ErrReused, 1},
		{"another query", func(r *Request) { r.Query = "q=2" }, ErrReused, 1},
		{"query and body divided elsewhere", func(r *Request) { r.Query, r.Body = "q=1b", strings.NewReader("ody") }, ErrReused, 1},
		{"another receiver", func(r *Request) { r.Header.Set("X-Callback-Url", "http://receiver/y") }, ErrReused, 1},
		{"no receiver", func(r *Request) { r.Header.Del("X-Callback-Url") }, ErrReused, 1},
	} {
		for _, when := range []string{"waits", "has ended", "is of an earlier process"} {
			t.Run(c.name+", the first "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					var runs atomic.Int32
					w.run = func(rw http.ResponseWriter, r *http.Request) {
						if runs.Add(1); r.Header.Get("X-Call-Id") != "a" {
							t.Errorf("X-Call-Id of the request to the function: got %q, want a", r.Header.Get("X-Call-Id"))
						}
						answers(200)(rw, r)
					}
					w.receive = func(r *http.Request) (int, error) {
						if id := r.Header.Get("X-Call-Id"); id != "a" {
							t.Errorf("X-Call-Id of the callback: got %q, want a", id)
						}
						return 204, nil
					}
					if when != "waits" {
						w.Start()
					}
					if err := w.Accept(request(nil)); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if when == "is of an earlier process" {
						w.stop()
						w.open()
					}
					if err := w.Accept(request(c.change)); !errors.Is(err, c.want) {
						t.Errorf("accept the second call: got %v, want %v", err, c.want)
					}
					w.Start()
					time.Sleep(time.Minute)
					synctest.Wait()
					if runs.Load() != c.runs || w.Pending() != 0 {
						t.Errorf("calls: got %d runs and %d pending, want %d and 0", runs.Load(), w.Pending(), c.runs)
					}
					if n := len(w.Statuses("a", "", nil)); n != int(c.runs) {
						t.Errorf("calls with the ID a: got %d, want %d", n, c.runs)
					}
					r := request(c.change)
					if n := len(w.Statuses("a", r.Function, &r.Path)); n != 1 {
						t.Errorf("calls with the ID a, the function and the path: got %d, want 1", n)
					}
					w.stop()
				})
			})
		}
	}
}

// TestSameIDAtOnce checks that, of concurrent calls with one ID, all calls with one of the
// bodies are accepted, as a single call, and the others are refused.
func TestSameIDAtOnce(t *testing.T) {
	w := newWorld(t)
	defer func() { w.stop() }()
	bodies := []string{"one", "two", "three"}
	var accepted [3]atomic.Int32
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			err := w.Accept(Request{ID: "a", Function: "f", Header: http.Header{}, Body: strings.NewReader(bodies[i%3])})
			if err == nil {
				accepted[i%3].Add(1)
			} else if !errors.Is(err, ErrReused) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	winners := 0
	for i := range accepted {
		switch accepted[i].Load() {
		case 0:
		case 10:
			winners++
		default:
			t.Errorf("accepted calls with the body %s: got %d of 10, want all or none", bodies[i], accepted[i].Load())
		}
	}
	if winners != 1 || w.Pending() != 1 {
		t.Errorf("got %d bodies with accepted calls and %d pending calls, want 1 of each", winners, w.Pending())
	}
}

// TestIDOfEarlierVersion checks that a call that an earlier version stored under its plain
// ID runs, and a repetition of it is not run.
func TestIDOfEarlierVersion(t *testing.T) {
	w := newWorld(t)
	w.stop()
	j, err := journal.Open(w.cfg.Dir, journal.Options{Retention: time.Hour, MaxEnded: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Accept(journal.Call{ID: "a", Function: "f", State: journal.Queued, Accepted: time.Now(), Path: "/x"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	defer func() { w.stop() }()
	path := "/x"
	if n := len(w.Statuses("a", "f", &path)); n != 1 {
		t.Errorf("calls with the ID a, the function f and the path /x: got %d, want 1", n)
	}
	w.accept("a", func(r *Request) { r.Path = "/x" })
	if w.Pending() != 1 {
		t.Errorf("pending calls after the repetition: got %d, want 1", w.Pending())
	}
	w.accept("a", func(r *Request) { r.Function = "g" })
	if w.Pending() != 2 {
		t.Errorf("pending calls after the call of g: got %d, want 2", w.Pending())
	}
}
