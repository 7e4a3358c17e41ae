package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// sockets accepts an upgrade to any protocol and echoes the data. It handles other
// requests like echo.
func sockets(rw http.ResponseWriter, r *http.Request) {
	protocol := r.Header.Get("Upgrade")
	if protocol == "" {
		echo(rw, r)
		return
	}
	conn, rest, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	_, _ = io.Copy(conn, rest)
}

// upgrade opens an upgraded connection to a function.
func (w *world) upgrade(name, protocol string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	return w.upgradeAt("/function/"+name+"/socket", protocol)
}

// upgradeAt opens an upgraded connection at a path.
func (w *world) upgradeAt(path, protocol string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn := w.dial("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n")
	in := bufio.NewReader(conn)
	if r, err := http.ReadResponse(in, nil); err != nil || r.StatusCode != 101 {
		w.t.Fatalf("got %+v, %v; want status 101", r, err)
	}
	return conn, in
}

// roundTrip sends text over an upgraded connection and reports whether the same text was
// received.
func roundTrip(conn net.Conn, in *bufio.Reader, text string) bool {
	_ = conn.SetDeadline(time.Now().Add(patience))
	got := make([]byte, len(text))
	_, err := io.WriteString(conn, text)
	if err == nil {
		_, err = io.ReadFull(in, got)
	}
	return err == nil && string(got) == text
}

// TestIdleUpgradeIsClosed checks that an upgraded connection that is idle for scale.idle
// is closed, and its instance stops. A connection in use, or of a function that keeps its
// connections, stays open.
func TestIdleUpgradeIsClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(sockets), nil)
	short := func(f *function.Function) { f.Scale.Idle = time.Second }
	w.apply(fn("silent", short), fn("pings", short), fn("kept", short, func(f *function.Function) { f.KeepUpgraded = true }))
	_, silent := w.upgrade("silent", "own")
	pings, pongs := w.upgrade("pings", "websocket")
	kept, answers := w.upgrade("kept", "own")
	closed := func(in *bufio.Reader) chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, in)
		}()
		return done
	}
	for name, done := range map[string]chan struct{}{"silent": closed(silent), "pings": closed(pongs)} {
		w.until("the connection of "+name+" is closed", func() bool {
			_, _ = pings.Write([]byte{0x89, 0x80, 1, 2, 3, 4})
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
	}
	w.until("the idle instances are stopped", func() bool { return len(w.Status().Instances) == 1 })
	if i := w.Status().Instances[0]; i.Function != "kept" || !roundTrip(kept, answers, "still here") {
		t.Errorf("got %+v; want the instance of kept, whose connection still echoes", i)
	}
}

// TestIdleUpgradeYields checks that the gateway closes an idle upgraded connection when a
// call needs the memory or the place of its instance, unless the function keeps its
// connections.
func TestIdleUpgradeYields(t *testing.T) {
	t.Parallel()
	large := func(f *function.Function) { f.GPUMem = 10 * gpu.GiB }
	keep := func(f *function.Function) { f.KeepUpgraded = true }
	one := func(f *function.Function) { f.Scale.Max = 1 }
	for _, c := range []struct {
		name   string
		socket function.Function
		call   function.Function
		idle   time.Duration
		yields bool
	}{
		{"another function", fn("x", large), fn("y", large), dispatch.YieldAfter, true},
		{"the same function", fn("x", large, one), fn("x", large, one), dispatch.YieldAfter, true},
		{"kept", fn("x", large, keep), fn("y", large), dispatch.YieldAfter, false},
		{"used", fn("x", large), fn("y", large), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var passed atomic.Int64
			w := newWorld(t, http.HandlerFunc(sockets), func(c *Config) {
				c.GPUs[0].Mem = int64(16 * gpu.GiB)
				began := time.Now()
				c.dispatchConfig.Now = func() time.Duration { return time.Since(began) + time.Duration(passed.Load()) }
			})
			w.apply(c.socket, c.call)
			conn, in := w.upgrade("x", "own")
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			done := make(chan answer, 1)
			go func() {
				a, _ := w.try(ctx, "POST", "/function/"+c.call.Name, "")
				done <- a
			}()
			w.until("the call is queued", func() bool {
				for _, f := range w.Status().Functions {
					if *f.Waiting > 0 {
						return true
					}
				}
				return false
			})
			passed.Store(int64(c.idle))
			if !c.yields {
				w.dispatcher.Yield()
				if !roundTrip(conn, in, "still here") {
					t.Error("idle upgraded connection: got it closed, want it open")
				}
				return
			}
			if a := <-done; a.status != 200 || !strings.HasPrefix(a.header.Get("Gfaas-Instance"), c.call.Name+".") {
				t.Errorf("got %+v; want status 200 of an instance of %s", a, c.call.Name)
			}
			if _, err := in.ReadByte(); err == nil {
				t.Error("idle upgraded connection: got it open, want it closed")
			}
		})
	}
}
