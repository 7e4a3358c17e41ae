package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
)

// incoming waits until so many bodies are being received.
func (w *world) incoming(n int) {
	w.t.Helper()
	w.until("bodies are on their way", func() bool { return w.inPhase(phaseBody) == n })
}

// inPhase returns the number of connections in a phase.
func (w *world) inPhase(phase int32) (n int) {
	w.callers.mu.Lock()
	defer w.callers.mu.Unlock()
	for _, h := range w.callers.hosts {
		for conn := range h.conns {
			if conn.phase() == phase {
				n++
			}
		}
	}
	return n
}

// dialFrom sends text over a connection of its own from another address of this machine.
func (w *world) dialFrom(address, text string) net.Conn {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := d.Dial("tcp", w.WebAddr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// TestConnectionsGiveWay: connections that wait for their callers, whatever for, give way to
// others, so that calls, health checks and the control socket are answered; and only as many
// of them as there may be are open.
func TestConnectionsGiveWay(t *testing.T) {
	const most, many = 30, 100
	for name, c := range map[string]struct {
		said string
		same bool // the host that has the connections is answered too
	}{
		"idle":         {"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", true},
		"no request":   {"", true},
		"half a head":  {"GET /healthz HTTP/1.1\r\nHost:", true},
		"half a body":  {"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf", true},
		"half of a v1": {"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", true},
		"half async":   {"POST /async-function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf", true},
		"management":   {"PUT /system/functions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf", true},
		"lingers":      {"POST /function/none HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nhalf", true},
		"calls":        {"GET /function/f/hang HTTP/1.1\r\nHost: x\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			w := newWorld(t, mixed{"/hang": func(http.ResponseWriter, *http.Request) { <-release }}, func(cfg *Config) {
				withAsync(t)(cfg)
				cfg.files, cfg.Concurrency, cfg.Queue = most*8/3, 256, 256
			})
			defer close(release)
			w.apply(fn("f", func(f *function.Function) { f.Inflight = 256 }))
			w.do("GET", "/function/f", "")
			var held []net.Conn
			for i := range many {
				conn := w.dialFrom("127.0.0.1", c.said)
				held = append(held, conn)
				if i < most/2 { // they begin before others come
					w.until(name, func() bool {
						w.callers.mu.Lock()
						defer w.callers.mu.Unlock()
						return w.callers.conns > i
					})
				}
			}
			w.until("as many as there may be", func() bool {
				w.callers.mu.Lock()
				defer w.callers.mu.Unlock()
				return w.callers.conns > most/2 && w.callers.conns <= most
			})
			if c.same { // on a busy host some may still be on their way to where they wait
				w.until("none runs", func() bool { return w.inPhase(phaseRuns) == 0 })
			}
			for _, from := range []string{"127.0.0.9", "127.0.0.1"} {
				for _, path := range []string{"/healthz", "/function/f/x"} {
					want := 200
					if from == "127.0.0.1" && !c.same {
						want = 503
					}
					a := said(t, w.dialFrom(from, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"))
					if a.status != want || want == 503 && a.reason() != codeBusy {
						t.Errorf("%s from %s: %d %s, want %d", path, from, a.status, a.body, want)
					}
				}
			}
			control := http.Client{Transport: &http.Transport{DisableKeepAlives: true, Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", w.cfg.Socket) }}, Timeout: patience}
			if a, err := control.Get("http://x/system/status"); err != nil || a.StatusCode != 200 {
				t.Errorf("control socket: %v, %v", a, err)
			} else {
				_ = a.Body.Close()
			}
			if name == "calls" { // none of those that run was cut
				if n := w.inPhase(phaseRuns); n < most/2 {
					t.Errorf("%d calls run, want %d or more", n, most/2)
				}
			}
			for _, conn := range held {
				_ = conn.Close()
			}
		})
	}
}

// TestIdleLongestGivesWay: of idle connections the one that is so for the longest is closed,
// and not one of a host that has few.
func TestIdleLongestGivesWay(t *testing.T) {
	const most = 8
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.files = most*8/3 + 1 })
	idle := func(from string) net.Conn {
		n := w.inPhase(phaseIdle)
		conn := w.dialFrom(from, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		w.until("idle", func() bool { return w.inPhase(phaseIdle) == min(n+1, most) })
		return conn
	}
	few := idle("127.0.0.9")
	var conns []net.Conn
	for range most {
		conns = append(conns, idle("127.0.0.1"))
	}
	open := func(conn net.Conn) bool {
		said(t, conn)
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		_, err := conn.Read(make([]byte, 1))
		if err != nil && !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Error(err)
		}
		return err == nil
	}
	if !open(few) {
		t.Error("the connection of the host that has one was closed")
	}
	for i, conn := range conns {
		if got, want := open(conn), i > 0; got != want {
			t.Errorf("connection %d: open %v, want %v", i, got, want)
		}
	}
}
