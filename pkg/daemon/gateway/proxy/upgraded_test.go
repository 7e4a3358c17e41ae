package proxy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestFrames checks that the parser distinguishes data from pings, pongs and closes,
// however the stream is split.
func TestFrames(t *testing.T) {
	const masked, unmasked = true, false
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
		return append(head, bytes.Repeat([]byte{0x81}, length)...) // payload bytes that look like the head of a data frame
	}
	const text, binary, goesOn, closes, ping, pong = 1, 2, 0, 8, 9, 10
	for _, c := range []struct {
		name   string
		frames [][]byte
		data   int // number of bytes that count as data if the stream is read byte by byte: payloads and the last bytes of their heads
	}{
		{"ping and pong", [][]byte{frame(ping, masked, 0), frame(pong, masked, 125), frame(ping, unmasked, 3)}, 0},
		{"close", [][]byte{frame(closes, masked, 2)}, 0},
		{"text", [][]byte{frame(text, masked, 5)}, 1 + 4 + 5},
		{"empty text", [][]byte{frame(text, unmasked, 0)}, 1},
		{"parts with a ping between", [][]byte{frame(text, unmasked, 10), frame(ping, unmasked, 10), frame(goesOn, unmasked, 10)}, 22},
		{"long", [][]byte{frame(ping, masked, 125), frame(binary, masked, 300), frame(ping, unmasked, 1)}, 1 + 4 + 300},
		{"longer", [][]byte{frame(binary, unmasked, 70_000), frame(ping, unmasked, 1)}, 1 + 70_000},
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
				t.Errorf("%s in parts of %d: got the state %+v, want the end of a frame", c.name, size, f)
			}
		}
	}
	if other := (frames{}); !other.data([]byte{0x89, 0}) || other.data(nil) {
		t.Error("stream of another protocol: want each byte to count as data, and none without bytes")
	}
}

// instanceSide is the instance's side of an upgraded connection.
type instanceSide struct{ bytes.Buffer }

func (*instanceSide) Close() error { return nil }

// TestUseOfUpgrade checks that data in either direction postpones the end of an upgraded
// connection, and pings do not.
func TestUseOfUpgrade(t *testing.T) {
	d, err := dispatch.New(t.Context(), dispatch.Config{Metrics: metrics.New(), Policy: queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()}}, dispatch.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	d.Apply([]function.Function{{Name: "f", Scale: function.DefaultScale}})
	p := New(Config{Dispatcher: d})
	c := p.NewCall(httptest.NewRequest("GET", "/", nil), d.Function("f"), "")
	instance := &instanceSide{}
	conn := newConnection(c, instance, http.Header{"Upgrade": {"websocket"}})
	defer c.limit.Stop()
	read := func(text string) {
		t.Helper()
		instance.WriteString(text)
		if _, err := io.ReadFull(conn, make([]byte, len(text))); err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string) {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		instance.Reset()
	}
	for _, pass := range []func(string){read, write} {
		conn.used.Store(-1)
		if pass("\x89\x00\x8a\x00"); conn.used.Load() != -1 {
			t.Error("pings and pongs: got the end of the connection postponed, want it unchanged")
		}
		if pass("\x81\x02hi"); conn.used.Load() == -1 {
			t.Error("data: got the end of the connection unchanged, want it postponed")
		}
	}
}
