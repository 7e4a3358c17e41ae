package gateway

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// TestSlowBodiesHoldNoPlace checks that incomplete bodies, in any number, do not keep
// other calls from their function.
func TestSlowBodiesHoldNoPlace(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"function": "/function/f", "KServe": "/v2/models/f/infer", "OpenAI": "/v1/chat/completions", "asynchronous": "/async-function/f"} {
		t.Run(name, func(t *testing.T) {
			const many = 1100
			w := newWorld(t, http.HandlerFunc(echo), withAsync(t)) // at most four asynchronous calls
			w.apply(fn("f"))
			for range many {
				w.dial("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n{")
			}
			for _, call := range []string{"/function/f", "/v1/chat/completions", "/async-function/f"} {
				want := 200
				if strings.HasPrefix(call, "/async") {
					want = 202
				}
				for _, body := range []string{`{"model":"f"}`, `{"model":"f","x":"` + strings.Repeat("x", 2000) + `"}`} {
					if a := w.do("POST", call, body); a.status != want {
						t.Errorf("%s: %d %s, want %d", call, a.status, a.body, want)
					}
				}
			}
		})
	}
}

// trickle sends one byte at a time until the connection fails or the test ends.
func trickle(conn net.Conn, until <-chan struct{}) {
	for {
		select {
		case <-until:
			return
		case <-time.After(5 * time.Millisecond):
		}
		if _, err := conn.Write([]byte(" ")); err != nil {
			return
		}
	}
}

// TestBodyRate checks that the gateway ends a body that never pauses for long but stays
// below the minimum rate, on every path, and sends the reason to the caller.
func TestBodyRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		withAsync(t)(c)
		c.BodyTimeout, c.BodyRate = 500*time.Millisecond, 1<<20
	})
	w.apply(fn("f"))
	ended := make(chan struct{})
	defer close(ended)
	for name, request := range map[string]string{
		"function":       "POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"long body":      "POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 2000),
		"OpenAI":         "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
		"OpenAI, in two": "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{\"x\":\"" + strings.Repeat("x", 2000),
		"asynchronous":   "POST /async-function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"management":     "PUT /system/functions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
	} {
		const attempts = 20
		for n := 1; ; n++ {
			conn := w.dial(request)
			go trickle(conn, ended)
			a := readAnswer(t, conn)
			if a.status != 408 || a.reason() != refusal.SlowBody {
				t.Errorf("%s: %d %s %s, want 408 %s", name, a.status, a.reason(), a.body, refusal.SlowBody)
				break
			}
			if strings.Contains(a.body, "bytes per second") {
				break
			}
			if n == attempts { // on a busy host, trickle may pause for BodyTimeout
				t.Errorf("%s: last refusal of %d: got %s, want one that names the rate", name, attempts, a.body)
				break
			}
		}
	}
	w.awaitNoCalls()
}

// TestBodyMemory checks that the bodies of all functions together stay within the memory
// limit, on every path. Meanwhile the gateway answers calls without a body, calls with
// small bodies, and calls of a host that holds less memory than others.
func TestBodyMemory(t *testing.T) {
	t.Parallel()
	const body, many = 256 << 10, 20 // four of these bodies exceed the limit
	const rest = body - 1
	for name, c := range map[string]struct {
		head string
		send int
	}{
		"length":           {"POST /function/%c HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n", rest},
		"chunked":          {"POST /function/%c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40000\r\n", rest},
		"chunked, unsent":  {"POST /function/%c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 0},
		"expects":          {"POST /function/%c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 262144\r\n\r\n", 0},
		"OpenAI":           {"POST /v1/%c HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n", rest},
		"asynchronous":     {"POST /async-function/%c HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n", rest},
		"management":       {"PUT /system/functions?%c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 262144\r\n\r\n", rest},
		"long, OpenAI":     {"POST /v1/%c HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n", rest},
		"small and unsent": {"POST /function/%c HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 1 << 20
			w := newWorld(t, http.HandlerFunc(echo), func(cfg *Config) {
				withAsync(t)(cfg)
				cfg.Buffer, cfg.BufferMemory, cfg.Spill = body, most, 64<<20
			})
			w.apply(fn("a"), fn("b"), fn("c"), fn("d"))
			n := many
			if strings.HasPrefix(name, "small") {
				n = 150
			}
			sent := 0
			send := func() {
				conn := w.dialFrom("127.0.0.1", fmt.Sprintf(c.head, 'a'+sent%4))
				sent++
				go func() { _, _ = conn.Write([]byte(strings.Repeat("{", min(c.send, 1<<20)))) }() // the gateway may not read it
			}
			for range n {
				send()
			}
			// While others wait, the gateway refuses bodies that pause for two seconds. On a busy host
			// it may have refused the first ones before the last one has been sent.
			w.until("bodies wait for memory", func() bool {
				if w.intake.Usage().Waiting > 0 {
					return true
				}
				send()
				return false
			})
			for range 20 {
				if used := w.intake.Usage().Memory; used > most {
					t.Fatalf("%d bytes are used, want at most %d", used, most)
				}
				if a := readAnswer(t, w.dialFrom("127.0.0.1", "GET /function/a/x HTTP/1.1\r\nHost: x\r\n\r\n")); a.status != 200 {
					t.Errorf("without a body: %d %s, want 200", a.status, a.body)
				}
				for _, size := range []int{100, 200_000} {
					text := strings.Repeat("x", size)
					a := readAnswer(t, w.dialFrom("127.0.0.9", fmt.Sprintf("POST /function/a/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, text)))
					if a.status != 200 || a.body != text {
						t.Errorf("another host, %d bytes: %d %.200s, want 200", size, a.status, a.body)
					}
				}
			}
		})
	}
}

// TestBodyMemoryIsGivenBack checks that the gateway releases the memory of every call,
// however the call ends.
func TestBodyMemoryIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pathHandlers{"/dies": hangUp}, func(c *Config) {
		withAsync(t)(c)
		c.BodyTimeout = 300 * time.Millisecond
	})
	w.apply(fn("f"))
	body := strings.Repeat("x", 900)
	for _, path := range []string{"/function/f", "/function/f/dies", "/function/none", "/v1/x", "/async-function/f", "/async-function/none", "/system/functions"} {
		for _, sent := range []string{body, body[:100]} {
			conn := w.dial(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(body), sent))
			readAnswer(t, conn)
			conn = w.dial(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(body), sent))
			_ = conn.Close()
		}
		w.do("POST", path, strings.Repeat("x", 5000))
	}
	w.until("the memory of all bodies is released", func() bool { return w.intake.Usage().Memory == 0 })
	f := w.dispatcher.Function("f")
	w.until("no memory of bodies counts for the function", func() bool { return f.Bodies.Load() == 0 })
}

// TestBodiesWaitForMemory checks that complete bodies keep their memory. Further bodies
// wait unread, up to --queue-timeout, and a body that pauses is cut off to free memory.
func TestBodiesWaitForMemory(t *testing.T) {
	t.Parallel()
	release, began := make(chan struct{}), make(chan struct{}, 10)
	w := newWorld(t, pathHandlers{"/hang": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, func(c *Config) {
		c.Buffer, c.BufferMemory, c.Concurrency, c.Stall = 512<<10, 1<<20, 4, time.Nanosecond
	})
	w.apply(fn("f"), fn("g"))
	big := strings.Repeat("x", 400<<10)
	send := func(path, body string, of int) net.Conn {
		return w.dial(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, of, body))
	}
	runs := send("/function/f/hang", big, len(big))
	<-began
	pauses := send("/function/f", big[:100], len(big)) // holds as much memory as the first body
	w.until("the memory counts both bodies", func() bool { return w.intake.Usage().Memory == int64(2*len(big)) })
	waits := send("/function/g", big, len(big))
	if a := readAnswer(t, pauses); a.status != 503 || a.reason() != refusal.Busy || a.header.Get("Retry-After") == "" {
		t.Errorf("the body that pauses: %d %s %v, want 503 busy", a.status, a.body, a.header)
	}
	if a := readAnswer(t, waits); a.status != 200 || a.body != big {
		t.Errorf("the body that waited: %d %.200s, want 200", a.status, a.body)
	}
	release <- struct{}{}
	if a := readAnswer(t, runs); a.status != 200 {
		t.Errorf("a call that runs: %d %.200s, want 200", a.status, a.body)
	}
	w = newWorld(t, w.handler, func(c *Config) {
		c.Buffer, c.BufferMemory, c.Concurrency, c.QueueTimeout = 512<<10, 1<<20, 4, 100*time.Millisecond
	})
	w.apply(fn("f", func(f *function.Function) { f.Inflight = 2 }), fn("g"))
	w.do("GET", "/function/f", "") // starts an instance of f, so that later calls need not wait for it
	var held []net.Conn
	for range 2 {
		held = append(held, send("/function/f/hang", big, len(big)))
		<-began
	}
	if a := readAnswer(t, send("/function/g", big, len(big))); a.status != 503 || a.reason() != refusal.Busy {
		t.Errorf("beyond --queue-timeout: %d %.200s, want 503 busy", a.status, a.body)
	}
	close(release)
	for _, conn := range held {
		if a := readAnswer(t, conn); a.status != 200 {
			t.Errorf("a call that runs: %d %.200s, want 200", a.status, a.body)
		}
	}
}
