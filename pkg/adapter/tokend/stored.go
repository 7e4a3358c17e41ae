package tokend

import (
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
	x, err := c.send(ctx, http.MethodPost, "/v1/stored", s)
	if err != nil {
		return nil, err
	}
	var in wire.StoredIn
	counts := x.answer.StatusCode != http.StatusNoContent
	if counts {
		if err = json.NewDecoder(x.answer.Body).Decode(&in); err != nil {
			err = fmt.Errorf("cannot read the answer of the token daemon at %s: %w", c.socket, err)
		} else if !x.stop() {
			err = ctx.Err()
		}
	}
	if err != nil || !counts {
		x.close()
		return nil, err
	}
	count := &Count{Instance: in.Instance, conn: x.conn, ended: make(chan struct{})}
	go func() {
		defer close(count.ended)
		_, _ = io.Copy(io.Discard, x.answer.Body)
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
