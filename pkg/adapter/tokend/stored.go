package tokend

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// Count represents memory that the daemon counts against an instance's limit.
type Count struct {
	Instance string
	conn     *net.UnixConn
	ended    chan struct{}
}

// closeTime bounds how long Close waits for the daemon.
const closeTime = time.Second

// CountStored makes the daemon count the memory of a model that a process stores. It
// returns nil without an error if the process belongs to no instance with a slice of that
// GPU. If the daemon refuses, the *Error holds the status.
func (c *Client) CountStored(ctx context.Context, s wire.Stored) (*Count, error) {
	req, err := c.request(ctx, http.MethodPost, "/v1/stored", s)
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	count, err := c.startCount(ctx, conn.(*net.UnixConn), req)
	if count == nil {
		_ = conn.Close()
	}
	return count, err
}

// startCount sends the request and returns a Count that owns the connection.
func (c *Client) startCount(ctx context.Context, conn *net.UnixConn, req *http.Request) (*Count, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req.Close = true
	if err := req.Write(conn); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
		return nil, refusal(answer, text)
	}
	if answer.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	var in wire.StoredIn
	if err := json.NewDecoder(answer.Body).Decode(&in); err != nil {
		return nil, fmt.Errorf("cannot read the answer of the token daemon at %s: %w", c.socket, err)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	count := &Count{Instance: in.Instance, conn: conn, ended: make(chan struct{})}
	go func() {
		defer close(count.ended)
		_, _ = io.Copy(io.Discard, answer.Body)
	}()
	return count, nil
}

// Done returns a channel that is closed when the daemon stops counting the memory.
func (c *Count) Done() <-chan struct{} { return c.ended }

// Close ends the count. It returns when the daemon has subtracted the memory, or after 1 s.
func (c *Count) Close() {
	_ = c.conn.SetReadDeadline(time.Now().Add(closeTime))
	_ = c.conn.CloseWrite()
	<-c.ended
	_ = c.conn.Close()
}
