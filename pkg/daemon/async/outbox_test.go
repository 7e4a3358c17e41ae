package async

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// callbackTo sets the receiver of a call's answer.
func callbackTo(host string) func(*Request) {
	return func(r *Request) { r.Header.Set("X-Callback-Url", "http://"+host+"/x") }
}

// neverAnswer is a receiver that accepts a connection and never answers.
func neverAnswer(r *http.Request) (int, error) {
	<-r.Context().Done()
	return 0, r.Context().Err()
}

// TestDeadReceivers checks that receivers that never answer, or refuse, delay the answers
// to others by at most a few seconds, at any number of answers to them, and after each
// restart.
func TestDeadReceivers(t *testing.T) {
	for _, c := range []struct {
		name        string
		hosts, each int // receivers that fail, and answers to each
		fail        func(*http.Request) (int, error)
		before      time.Duration // how long they fail before the answer to another receiver is added
		first       bool          // the other receiver has taken an answer before
		restart     bool
		atMost      time.Duration
	}{
		{name: "one", hosts: 1, each: 10, fail: neverAnswer, before: time.Second, atMost: 3 * time.Second},
		{name: "one, after a restart", hosts: 1, each: 10, fail: neverAnswer, before: time.Second, restart: true, atMost: 4 * time.Second},
		{name: "one that failed before", hosts: 1, each: 12, fail: neverAnswer, before: 10 * time.Minute, atMost: 4 * time.Second},
		{name: "one, and another that took an answer", hosts: 1, each: 12, fail: neverAnswer, before: 3 * time.Minute, first: true, atMost: 4 * time.Second},
		{name: "two ports of one host", hosts: 2, each: 6, fail: neverAnswer, before: time.Second, atMost: 7 * time.Second},
		{name: "eight", hosts: 8, each: 2, fail: neverAnswer, before: time.Minute, atMost: 8 * time.Second},
		{name: "one that refuses", hosts: 1, each: 12, fail: func(*http.Request) (int, error) { return 0, errors.New("refused") }, before: time.Second, atMost: time.Second},
		{name: "one that takes long to fail", hosts: 1, each: 12, fail: func(r *http.Request) (int, error) {
			select {
			case <-time.After(20 * time.Second):
			case <-r.Context().Done():
			}
			return 503, nil
		}, before: time.Minute, atMost: 4 * time.Second},
	} {
		for _, concurrency := range []int{1, 2, 16} {
			t.Run(fmt.Sprintf("%s, concurrency %d", c.name, concurrency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					defer func() { w.stop() }()
					w.stop()
					w.cfg.Concurrency, w.cfg.Max = concurrency, 1000
					w.open()
					var taken []time.Duration
					began := time.Now()
					w.receive = func(r *http.Request) (int, error) {
						if !strings.HasPrefix(r.URL.Host, "good") {
							return c.fail(r)
						}
						w.mu.Lock()
						defer w.mu.Unlock()
						taken = append(taken, time.Since(began))
						return 200, nil
					}
					w.Start()
					if c.first {
						w.accept("first", callbackTo("good"))
						time.Sleep(time.Second)
						synctest.Wait()
					}
					for host := range c.hosts {
						for n := range c.each {
							w.accept(fmt.Sprint("dead-", host, "-", n), callbackTo(fmt.Sprintf("dead:%d", 8000+host)))
						}
					}
					time.Sleep(c.before)
					synctest.Wait()
					taken, began = nil, time.Now()
					if c.restart {
						w.accept("good", callbackTo("good"))
						w.stop()
						w.open()
						w.Start()
					} else {
						w.accept("good", callbackTo("good"))
					}
					time.Sleep(24 * time.Hour)
					synctest.Wait()
					if len(taken) != 1 || taken[0] > c.atMost {
						t.Errorf("time until the other receiver took its answer: got %v, want one time of at most %v", taken, c.atMost)
					}
					if n := w.Pending(); n != 0 {
						t.Errorf("pending calls after a day: got %d, want 0", n)
					}
				})
			})
		}
	}
}

// TestSlowReceivers checks that a slow receiver has the time it needs, also after a
// failure, if no other answers wait for places. While others wait, a receiver that took its
// last answer has ten seconds.
func TestSlowReceivers(t *testing.T) {
	for _, c := range []struct {
		name   string
		takes  time.Duration
		fails  int // number of answers that it refuses at first
		others int // number of answers to other receivers, each of which takes 4 s, one after the other
		sent   int
	}{
		{"alone", 25 * time.Second, 0, 0, 1},
		{"alone, after it failed", 25 * time.Second, 1, 0, 2},
		{"in use by others", 9 * time.Second, 0, 30, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer func() { w.stop() }()
				sent, fails := 0, c.fails
				w.receive = func(r *http.Request) (int, error) {
					takes := 4 * time.Second
					if r.URL.Host == "slow" && r.Header.Get("X-Call-Id") == "first" {
						return 200, nil
					}
					if r.URL.Host == "slow" {
						w.mu.Lock()
						sent++
						fails--
						failing := fails >= 0
						w.mu.Unlock()
						if failing {
							return 503, nil
						}
						takes = c.takes
					}
					select {
					case <-time.After(takes):
						return 200, nil
					case <-r.Context().Done():
						return 0, r.Context().Err()
					}
				}
				w.Start()
				if c.others > 0 {
					w.accept("first", callbackTo("slow"))
					synctest.Wait()
				}
				w.accept("slow", callbackTo("slow"))
				synctest.Wait()
				for n := range c.others {
					w.accept(fmt.Sprint(n), callbackTo("other"))
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				w.checkStatus("slow", "done", 1, 200)
				if sent != c.sent {
					t.Errorf("requests to the slow receiver: got %d, want %d", sent, c.sent)
				}
			})
		})
	}
}

// TestReceiversTakeTurns checks that receivers take turns, and a receiver that has
// recovered from a failure gets its answers while others are busy.
func TestReceiversTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() { w.stop() }()
		w.stop()
		w.cfg.Concurrency, w.cfg.Max = 2, 1000 // one answer at a time
		w.open()
		var order []string
		failing := true
		w.receive = func(r *http.Request) (int, error) {
			time.Sleep(time.Second)
			w.mu.Lock()
			defer w.mu.Unlock()
			if failing && r.URL.Host == "c" {
				failing = false
				return 500, nil
			}
			order = append(order, r.URL.Host)
			return 200, nil
		}
		for n := range 20 {
			w.accept(fmt.Sprint("a", n), callbackTo("a"))
		}
		w.accept("b", callbackTo("b"))
		w.accept("c", callbackTo("c"))
		w.Start()
		time.Sleep(time.Hour)
		synctest.Wait()
		if b, c := slices.Index(order, "b"), slices.Index(order, "c"); len(order) != 22 || b < 0 || b > 2 || c < 0 || c > 12 {
			t.Errorf("order of the answers: got %d answers, b at index %d and c at index %d, want 22 answers, b at 0 to 2 and c at 0 to 12: %v", len(order), b, c, order)
		}
	})
}

func TestReceiverOf(t *testing.T) {
	for address, want := range map[string]string{
		"http://Host/x": "http://host:http", "http://host:80/y?z": "http://host:80", "https://host./": "https://host:https",
		"http://user:secret@[::1]:9/": "http://::1:9", "http://host:8080": "http://host:8080",
	} {
		if got := receiverOf(address); got != want {
			t.Errorf("receiver of %s: got %s, want %s", address, got, want)
		}
	}
}
