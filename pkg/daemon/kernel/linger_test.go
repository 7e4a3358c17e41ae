package kernel_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

// refusal reads an error answer and returns whether the connection ends with it.
func refusal(conn net.Conn) (status int, code string, closes bool, err error) {
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", false, err
	}
	defer got.Body.Close()
	var refused struct {
		Error struct{ Code, Message string }
	}
	err = json.NewDecoder(got.Body).Decode(&refused)
	return got.StatusCode, refused.Error.Code, got.Close, err
}

// A refused client receives the reason, even if it reads the answer only after sending everything.
func TestRefusedLongBodies(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) {
		c.Clients, c.HostMem = []kernel.ClientConfig{{Name: "alice", Weight: 1}}, 20*mib
	})
	big := make([]byte, 20*mib) // longer than the longest request
	plain := fmt.Sprintf("Content-Length: %d\r\n", len(big))
	chunked := "Transfer-Encoding: chunked\r\n"
	for _, c := range []struct {
		name, socket, line, headers, code string
		times                             int
	}{
		{"no key", "kernel.sock", "PUT /v1/objects/.x", plain, "bad-request", 50},
		{"no client", "kernel.sock", "PUT /v1/objects/x", plain + "Gfaas-Client: a b\r\n", "bad-request", 2},
		{"another's socket", "kernel-alice.sock", "PUT /v1/objects/x", plain + "Gfaas-Client: bob\r\n", "bad-request", 2},
		{"no length", "kernel.sock", "PUT /v1/objects/x", chunked, "bad-request", 2},
		{"a long request", "kernel.sock", "POST /v1/run", plain, "too-large", 2},
		{"a long one of no length", "kernel.sock", "POST /v1/run", chunked, "too-large", 2},
		{"a long weight", "kernel.sock", "PUT /v1/clients/c", plain, "bad-request", 2},
		{"nothing there", "kernel.sock", "PATCH /v1/objects/x", plain, "not-found", 2},
		{"a caller that closes", "kernel.sock", "PUT /v1/objects/.x", plain + "Connection: close\r\n", "bad-request", 2},
	} {
		for i := range c.times {
			conn, err := net.Dial("unix", filepath.Join(d.dir, c.socket))
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			d.write(conn, c.line+" HTTP/1.1\r\nHost: k\r\n"+c.headers+"\r\n")
			if c.headers == chunked {
				_, err = fmt.Fprintf(conn, "%x\r\n%s\r\n0\r\n\r\n", len(big), big)
			} else {
				_, err = conn.Write(big)
			}
			if err != nil {
				t.Errorf("%s, request %d: send the body: %v", c.name, i, err)
			}
			if status, code, closes, err := refusal(conn); err != nil || code != c.code || !closes {
				t.Errorf("%s, request %d: got status %d, code %q, closing %v and the error %v, want the code %s and a closing answer", c.name, i, status, code, closes, err, c.code)
			}
			_ = conn.Close()
		}
	}
	// The same for an object that does not fit, from a client that reads while it sends.
	for range 5 {
		var p *problem
		if _, err := d.do("", "PUT", object("x"), append(big, 1)); !asProblem(err, &p) || p.Code != "too-large" {
			t.Errorf("more than the host has: %v", err)
		}
	}
}

// A client that sends "Expect: 100-continue" is refused before it sends the body.
func TestRefusedBeforeItSends(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	conn := d.dial()
	d.write(conn, fmt.Sprintf("PUT /v1/objects/.x HTTP/1.1\r\nHost: k\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", 64*mib))
	if status, code, closes, err := refusal(conn); err != nil || status != 400 || code != "bad-request" || !closes {
		t.Errorf("PUT with an invalid key: got status %d, code %q, closing %v and the error %v, want 400 bad-request and a closing answer", status, code, closes, err)
	}
	// If the request is accepted, the client gets "100 Continue" and sends the body.
	conn = d.dial()
	d.write(conn, "PUT /v1/objects/x HTTP/1.1\r\nHost: k\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	r := bufio.NewReader(conn)
	if got, err := http.ReadResponse(r, nil); err != nil || got.StatusCode != 100 {
		t.Fatalf("first answer to an accepted PUT: got %+v, %v; want StatusCode 100", got, err)
	}
	d.write(conn, "wxyz")
	got, err := http.ReadResponse(r, nil)
	if err != nil || got.StatusCode != 204 {
		t.Fatalf("second answer to an accepted PUT: got %+v, %v; want StatusCode 204", got, err)
	}
	if data, err := d.do("", "GET", object("x"), nil); err != nil || string(data) != "wxyz" {
		t.Errorf("object x: got %q, %v; want wxyz", data, err)
	}
}

// A connection stays open after the refusal of a request with a short body.
func TestRefusedShortBodies(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	conn := d.dial()
	body := strings.Repeat("x", 100<<10)
	go func() {
		for range 3 {
			_, _ = io.WriteString(conn, post("PUT", "/v1/objects/.x", body, 0))
			_, _ = fmt.Fprintf(conn, "PUT /v1/objects/x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		}
	}()
	r := bufio.NewReader(conn)
	for i := range 6 {
		got, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if text, err := io.ReadAll(got.Body); err != nil || got.StatusCode != 400 || got.Close || !bytes.Contains(text, []byte(`"code":"bad-request"`)) {
			t.Errorf("answer %d: got %d %s, closing %v and the error %v, want 400 bad-request that keeps the connection", i, got.StatusCode, text, got.Close, err)
		}
	}
}

// The time and the bytes for dropping the rest of a body are bounded. Then the daemon closes the connection.
func TestRefusedWithoutEnd(t *testing.T) {
	t.Parallel() // it waits for time limits
	const rest = 1 << 40
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.Stall = time.Second })
	for name, chunk := range map[string][]byte{"slowly": []byte("x"), "fast": make([]byte, mib)} {
		conn := d.dial()
		d.write(conn, fmt.Sprintf("PUT /v1/objects/.x HTTP/1.1\r\nHost: k\r\nContent-Length: %d\r\n\r\n", int64(rest)))
		if status, _, closes, err := refusal(conn); err != nil || status != 400 || !closes {
			t.Errorf("sent %s: got status %d, closing %v and the error %v, want 400 and a closing answer", name, status, closes, err)
		}
		eventually(t, fmt.Sprintf("the daemon closes the connection of a body sent %s", name), func() bool { _, err := conn.Write(chunk); return err != nil })
	}
}
