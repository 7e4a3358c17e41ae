package fnhttp

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// lateConn is a connection whose writes return after it was closed, as in a goroutine that
// is not scheduled.
type lateConn struct {
	*net.TCPConn
	closed chan struct{}
	once   *sync.Once
}

func (l lateConn) Write(p []byte) (int, error) {
	n, err := l.TCPConn.Write(p)
	<-l.closed
	return n, err
}

func (l lateConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPConn.Close()
}

// TestSentBeforeWriteReturns checks that an instance that has ended may have read a call
// before the writer's write returned; the call must not be sent to another instance.
func TestSentBeforeWriteReturns(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			_, _ = io.ReadFull(c, make([]byte, 100))
			_ = c.Close()
		}
	}()
	address := listener.Addr().String()
	dialed, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := pool{idleTimeout: time.Hour}
	k, err := p.newConn(lateConn{dialed.(*net.TCPConn), make(chan struct{}), &sync.Once{}}, address)
	if err != nil {
		t.Fatal(err)
	}
	p.put(k)
	defer p.close(0)
	body := io.MultiReader(strings.NewReader(strings.Repeat("x", 5000)))
	request, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address, body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := p.invoke(t.Context(), &instance.Handle{Address: address}, request)
	if err == nil {
		_ = answer.Body.Close()
	}
	var failed *ports.CallError
	if !errors.As(err, &failed) || failed.Progress != ports.Sent {
		t.Errorf("call: got the error %v (%+v), want the progress %v", err, failed, ports.Sent)
	}
}
