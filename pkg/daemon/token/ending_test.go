package token

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestRegistrationWhileEnding: a registration that is on its way when the
// daemon is told to end does not keep it from that.
func TestRegistrationWhileEnding(t *testing.T) {
	s := serve(t, Config{})
	text, err := json.Marshal(reg("late", 60, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /v1/instances HTTP/1.1\r\nHost: tokend\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(text))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n') // it reads the body from now on
	if err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatal(line, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "the sockets are closed", func() bool { return !answers("unix", s.socket) })
	_, _ = conn.Write(text)
	answer, _ := io.ReadAll(conn)
	t.Logf("answer: %q", answer)
	select {
	case err := <-stopped:
		stopped <- err
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon does not end")
	}
}
