package gateway

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestFrames: data is told from pings, pongs and closes, however the stream is split.
func TestFrames(t *testing.T) {
	frame := func(opcode byte, masked bool, length int) []byte {
		head := []byte{0x80 | opcode, 0}
		switch {
		case length > 65535:
			head[1] = 127
			head = append(head, 0, 0, 0, 0, byte(length>>24), byte(length>>16), byte(length>>8), byte(length))
		case length > 125:
			head[1] = 126
			head = append(head, byte(length>>8), byte(length))
		default:
			head[1] = byte(length)
		}
		if masked {
			head[1] |= 0x80
			head = append(head, 1, 2, 3, 4)
		}
		return append(head, bytes.Repeat([]byte{0x81}, length)...) // as the head of data looks
	}
	const text, binary, goesOn, closes, ping, pong = 1, 2, 0, 8, 9, 10
	for _, c := range []struct {
		name   string
		frames [][]byte
		data   int // bytes that count as data, of a stream that is read byte by byte: payloads and the last byte of their heads
	}{
		{"ping and pong", [][]byte{frame(ping, true, 0), frame(pong, true, 125), frame(ping, false, 3)}, 0},
		{"close", [][]byte{frame(closes, true, 2)}, 0},
		{"text", [][]byte{frame(text, true, 5)}, 1 + 4 + 5},
		{"empty text", [][]byte{frame(text, false, 0)}, 1},
		{"parts with a ping between", [][]byte{frame(text, false, 10), frame(ping, false, 10), frame(goesOn, false, 10)}, 22},
		{"long", [][]byte{frame(ping, true, 125), frame(binary, true, 300), frame(ping, false, 1)}, 1 + 4 + 300},
		{"longer", [][]byte{frame(binary, false, 70_000), frame(ping, false, 1)}, 1 + 70_000},
	} {
		stream := bytes.Join(c.frames, nil)
		for _, size := range []int{1, 3, 7, len(stream)} {
			f, n, parts := frames{known: true}, 0, 0
			for rest := stream; len(rest) > 0; parts++ {
				part := rest[:min(size, len(rest))]
				if rest = rest[len(part):]; f.data(part) {
					n++
				}
			}
			if size == 1 && n != c.data || (n > 0) != (c.data > 0) {
				t.Errorf("%s in parts of %d: %d of %d parts have data, want %d of single bytes", c.name, size, n, parts, c.data)
			}
			if f.skip != 0 || f.n != 0 {
				t.Errorf("%s in parts of %d: it does not end with a frame: %+v", c.name, size, f)
			}
		}
	}
	if other := (frames{}); !other.data([]byte{0x89, 0}) || other.data(nil) {
		t.Error("of what is no WebSocket, all is data")
	}
}

// sockets accepts an upgrade to whatever is asked for, and echoes.
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

// upgrade opens a connection to a function.
func (w *world) upgrade(name, protocol string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn := w.dial("GET /function/" + name + "/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n")
	in := bufio.NewReader(conn)
	if r, err := http.ReadResponse(in, nil); err != nil || r.StatusCode != 101 {
		w.t.Fatalf("%+v, %v", r, err)
	}
	return conn, in
}

// say sends text over an upgraded connection and reports whether it came back.
func say(conn net.Conn, in *bufio.Reader, text string) bool {
	_ = conn.SetDeadline(time.Now().Add(patience))
	got := make([]byte, len(text))
	_, err := io.WriteString(conn, text)
	if err == nil {
		_, err = io.ReadFull(in, got)
	}
	return err == nil && string(got) == text
}

// TestIdleUpgradeIsClosed: an upgraded connection that is idle for as long as an instance
// may be is closed, and its instance stops; one that is used, or kept, is not.
func TestIdleUpgradeIsClosed(t *testing.T) {
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
	w.until("idle instances have stopped", func() bool { return len(w.Status().Instances) == 1 })
	if i := w.Status().Instances[0]; i.Function != "kept" || !say(kept, answers, "still here") {
		t.Errorf("%+v", i)
	}
}

// TestUseOfUpgrade: data that passes over an upgraded connection in either direction puts
// off its end, and pings do not.
func TestUseOfUpgrade(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(sockets), nil)
	w.apply(fn("f"))
	conn, in := w.upgrade("f", "websocket")
	var c *call
	w.until("it is upgraded", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		for _, c = range w.engine.calls {
			return c.begun.Load()
		}
		return false
	})
	end := c.limit.until.Load()
	if !say(conn, in, "\x89\x00\x8a\x00") || c.limit.until.Load() != end {
		t.Errorf("pings put off its end by %v", time.Duration(c.limit.until.Load()-end))
	}
	if !say(conn, in, "\x81\x02hi") || c.limit.until.Load() <= end {
		t.Errorf("data did not put off its end: %v", time.Duration(c.limit.until.Load()-end))
	}
}

// TestIdleUpgradeYields: an upgraded connection that is idle is closed when a call needs
// the memory or the place of its instance, unless the function keeps it.
func TestIdleUpgradeYields(t *testing.T) {
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
		{"another function", fn("x", large), fn("y", large), yieldAfter, true},
		{"the same function", fn("x", large, one), fn("x", large, one), yieldAfter, true},
		{"kept", fn("x", large, keep), fn("y", large), time.Hour, false},
		{"used", fn("x", large), fn("y", large), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, http.HandlerFunc(sockets), func(c *Config) { c.GPUs[0].Mem = int64(16 * gpu.GiB) })
			w.apply(c.socket, c.call)
			conn, in := w.upgrade("x", "own")
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			done := make(chan answer, 1)
			go func() {
				a, _ := w.try(ctx, "POST", "/function/"+c.call.Name, "")
				done <- a
			}()
			e := &w.engine
			w.until("a call waits", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				for _, other := range e.calls {
					if other.state == callWaits {
						return true
					}
				}
				return false
			})
			e.mu.Lock()
			for _, other := range e.calls {
				if other.upgraded != nil {
					other.upgraded.used.Add(-int64(c.idle))
				}
			}
			e.mu.Unlock()
			if !c.yields {
				if list := e.idleWhileWaited(); len(list) > 0 || !say(conn, in, "still here") {
					t.Errorf("%d connections are to be closed", len(list))
				}
				return
			}
			if a := <-done; a.status != 200 || !strings.HasPrefix(a.header.Get("Gfaas-Instance"), c.call.Name+".") {
				t.Errorf("%+v", a)
			}
			if _, err := in.ReadByte(); err == nil {
				t.Error("the connection is open")
			}
		})
	}
}
