package hooktest

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// TestGrantPrecedesHello: the library sends its grant whole before each hello, and names the missing feature if the
// daemon does not know grants and therefore ends the connection. A grant that is too long is sent as one, so that the
// daemon refuses it.
func TestGrantPrecedesHello(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		grant string
		sent  int // bytes
	}{
		"short": {"gfaas-grant-v1.a.b", 18}, "longest": {strings.Repeat("g", wire.MaxGrant), wire.MaxGrant},
		"too long": {strings.Repeat("g", wire.MaxGrant+100), wire.MaxGrant + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			var connections atomic.Int64
			f.opened = func(conn *net.UnixConn) {
				buf := make([]byte, 2*wire.MaxGrant)
				n, err := conn.Read(buf)
				if text, ok := wire.ReadGrant(buf[:n]); !ok || len(text) != tt.sent || !strings.HasPrefix(tt.grant, text) {
					t.Errorf("first message: got %d bytes, %v, a grant %v; want %d bytes of the grant", n, err, ok, tt.sent)
				}
				n, err = conn.Read(buf)
				msg, parsed := wire.Parse(buf[:max(n, 0)])
				if hello, ok := msg.(wire.Hello); !ok || hello.Instance.String() != "fake" {
					t.Errorf("second message: got %v, %v, %v; want the hello of the instance", msg, err, parsed)
				}
				connections.Add(1)
			}
			f.listen()
			p := f.run(append(f.env(1), "GFAAS_GRANT="+tt.grant), "check/drive", "10")
			p.order(kernels{blocks: 1, count: 1})
			f.eventually("the library waits for a daemon that accepts grants", func() bool {
				return strings.Contains(p.errout.String(), "GPU work waits for a gfaas-tokend with version 2 of the protocol, which accepts grants")
			})
			if connections.Load() < 2 {
				t.Errorf("connections: got %d, want several, each with the grant", connections.Load())
			}
		})
	}
}
