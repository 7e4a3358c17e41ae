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

	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// incoming waits until the gateway is receiving n bodies.
func (w *world) incoming(n int) {
	w.t.Helper()
	w.until("the gateway is reading all bodies", func() bool { return w.inPhase(inbound.PhaseBody) == n })
}

// inPhase returns the number of connections in a phase.
func (w *world) inPhase(phase int32) int {
	return w.intake.Usage().Connections[phase]
}

// connections returns the number of callers' connections.
func (w *world) connections() (n int) {
	for _, inPhase := range w.intake.Usage().Connections {
		n += inPhase
	}
	return n
}

// dialFrom sends text over a new connection from another address of this host.
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

// TestConnectionsGiveWay checks that connections that wait for their callers are closed
// in favor of new connections, so that the gateway answers calls, health checks and the
// control socket. The number of open connections stays within the limit.
func TestConnectionsGiveWay(t *testing.T) {
	const most, many = 30, 100
	for name, c := range map[string]struct {
		said string
		same bool // the host that holds the connections is answered too
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
			w := newWorld(t, pathHandlers{"/hang": func(http.ResponseWriter, *http.Request) { <-release }}, func(cfg *Config) {
				withAsync(t)(cfg)
				cfg.Files, cfg.Concurrency, cfg.Queue = most*8/3, 256, 256
			})
			defer close(release)
			w.apply(fn("f", func(f *function.Function) { f.Inflight = 256 }))
			w.do("GET", "/function/f", "")
			var held []net.Conn
			for i := range many {
				conn := w.dialFrom("127.0.0.1", c.said)
				held = append(held, conn)
				if i < most/2 { // these calls begin before further connections are opened
					w.until(name, func() bool { return w.connections() > i })
				}
			}
			w.until("the number of connections is at its limit", func() bool {
				n := w.connections()
				return n > most/2 && n <= most
			})
			for _, from := range []string{"127.0.0.9", "127.0.0.1"} {
				if from == "127.0.0.1" {
					// Connections are accepted in order, so the answers to the other host mean
					// that all have been accepted. On a busy host, some may not have reached
					// the phase in which they wait.
					w.until("the gateway has read all requests", func() bool {
						if c.same {
							return w.inPhase(inbound.PhaseRuns) == 0
						}
						return w.inPhase(inbound.PhaseHead)+w.inPhase(inbound.PhaseLingers) == 0
					})
				}
				for _, path := range []string{"/healthz", "/function/f/x"} {
					want := 200
					if from == "127.0.0.1" && !c.same {
						want = 503
					}
					a := readAnswer(t, w.dialFrom(from, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"))
					if a.status != want || want == 503 && a.reason() != refusal.Busy {
						t.Errorf("%s from %s: %d %s, want %d", path, from, a.status, a.body, want)
					}
				}
			}
			control := http.Client{Transport: &http.Transport{DisableKeepAlives: true, Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", w.cfg.Socket) }}, Timeout: patience}
			if a, err := control.Get("http://x/system/status"); err != nil || a.StatusCode != 200 {
				t.Errorf("request at the control socket: got %+v, %v; want status 200", a, err)
			} else {
				_ = a.Body.Close()
			}
			if name == "calls" { // no running call was cut off
				if n := w.inPhase(inbound.PhaseRuns); n < most/2 {
					t.Errorf("%d calls run, want %d or more", n, most/2)
				}
			}
			for _, conn := range held {
				_ = conn.Close()
			}
		})
	}
}

// TestIdleLongestGivesWay checks that the gateway closes the connection that has been
// idle the longest, but not a connection of a host that has few.
func TestIdleLongestGivesWay(t *testing.T) {
	const most = 8
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Files = most*8/3 + 1 })
	idle := func(from string) net.Conn {
		n := w.inPhase(inbound.PhaseIdle)
		conn := w.dialFrom(from, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		readAnswer(t, conn)
		w.until("the connections are idle", func() bool { return w.inPhase(inbound.PhaseIdle) == min(n+1, most) })
		return conn
	}
	few := idle("127.0.0.9")
	var conns []net.Conn
	for range most {
		conns = append(conns, idle("127.0.0.1"))
	}
	open := func(conn net.Conn) bool {
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
		t.Error("connection of the host that has one: got it closed, want it open")
	}
	for i, conn := range conns {
		if got, want := open(conn), i > 0; got != want {
			t.Errorf("connection %d: open %v, want %v", i, got, want)
		}
	}
}
