package model

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/model"
	"github.com/gfaas/gfaas/pkg/procfs"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

const (
	maxConns      = 4096 // connections per socket
	maxConcurrent = 64   // requests in progress per connection
)

// conn is a client's connection. It holds the copies granted to its requests until it ends.
type conn struct {
	server *server
	socket *net.UnixConn
	tenant string // tenant of the socket; empty for model.sock, whose requests may name any tenant
	ctx    context.Context
	cancel context.CancelFunc

	pid   int    // of the client process; 0: the process has no ID in this PID namespace
	start uint64 // start time of that process; 0: it had ended

	sending sync.Mutex
	running atomic.Int32 // requests in progress
	holds   []hold       // in the order of their grants; guarded by server.mu
}

// hold is a copy that a connection holds.
type hold struct {
	request    policy.RequestID
	tenant     string // tenant whose request got the copy
	key        policy.Key
	generation int64
	store      policy.CopyID // of an uncommitted store; otherwise 0
}

func (c *conn) close() {
	c.cancel()
	_ = c.socket.Close()
}

// run reads and answers requests until the connection ends, and then releases its holds.
func (c *conn) run() {
	if cred, err := procfs.Peer(c.socket); err == nil {
		c.pid = int(cred.Pid)
		s, _ := procfs.Read(c.pid)
		c.start = s.Start
	}
	var answering sync.WaitGroup
	buf, oob := make([]byte, wire.MaxRequest+1), make([]byte, unix.CmsgSpace(4*procfs.MaxRights))
	for {
		n, passed, flags, _, err := c.socket.ReadMsgUnix(buf, oob)
		files := procfs.ReceivedFiles(oob[:passed], "a client's file")
		if err != nil || n == 0 {
			procfs.Discard(files...)
			break
		}
		r, err := wire.ParseRequest(buf[:n])
		if err != nil || flags&unix.MSG_CTRUNC != 0 {
			procfs.Discard(files...)
			c.server.log.Warn("connection ended", "tenant", c.tenant, "err", err)
			break
		}
		c.reportAlive()
		if c.running.Add(1) > maxConcurrent {
			c.running.Add(-1)
			procfs.Discard(files...)
			c.answer(r.ID, wire.Answer{}, wire.Errorf(wire.CodeUsage, "the connection has more than %d requests in flight", maxConcurrent))
			continue
		}
		answering.Go(func() {
			defer c.running.Add(-1)
			c.handle(r, files)
		})
	}
	c.close()
	answering.Wait()
	c.releaseHolds()
}

// reportAlive reports a sign of life of the connection's stores to the policy.
func (c *conn) reportAlive() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	var events []policy.Event
	for _, h := range c.holds {
		if h.store != 0 {
			events = append(events, policy.Heartbeat{Request: h.request})
		}
	}
	if len(events) > 0 {
		c.server.stepLocked(events...)
	}
}

// releaseHolds releases everything that the connection holds.
func (c *conn) releaseHolds() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	delete(c.server.conns, c)
	c.server.lastUsed = time.Now()
	var events []policy.Event
	for _, h := range c.holds {
		delete(c.server.requests, h.request)
		events = append(events, policy.Release{Request: h.request})
	}
	c.holds = nil
	c.server.stepLocked(events...)
}

// handle answers one request.
func (c *conn) handle(r wire.Request, files []*os.File) {
	call := &call{conn: c, Request: r}
	if len(files) > 0 {
		call.file = files[0]
		procfs.Discard(files[1:]...)
	}
	err := call.check(len(files))
	var a wire.Answer
	if err == nil {
		a, err = call.operation.run(call)
	}
	if call.file != nil {
		procfs.Discard(call.file)
	}
	c.answer(r.ID, a, err, call.rights...)
	for _, f := range call.rights {
		_ = f.Close()
	}
}

// answer sends an answer. It closes the connection if the client does not read within SendTime.
func (c *conn) answer(id json.RawMessage, a wire.Answer, err error, files ...*os.File) {
	a.OK, a.ID = err == nil, id
	if err != nil {
		a = wire.Answer{ID: id, Error: codeOf(err)}
		const maxMessage = 4 << 10
		if len(a.Error.Message) > maxMessage {
			a.Error.Message = a.Error.Message[:maxMessage] + "…"
		}
	}
	text, err := encode(a)
	if err != nil {
		c.server.log.Error("answer", "err", err)
		c.close()
		return
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.server.cfg.SendTime))
	if _, _, err := c.socket.WriteMsgUnix(text, procfs.Rights(files...), nil); err != nil {
		c.close()
	}
}

// encode encodes JSON without HTML escaping, which would make an ID up to six times as long and
// change its text.
func encode(v any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// removeHold removes a hold and returns its request: the first one that the tenant got under the
// name, of the given generation unless that is 0. It ignores uncommitted stores.
func (c *conn) removeHold(tenant, name string, generation int64) (policy.RequestID, bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	i := slices.IndexFunc(c.holds, func(h hold) bool {
		return h.tenant == tenant && h.key.Name == name && h.store == 0 && (generation == 0 || h.generation == generation)
	})
	if i < 0 {
		return 0, false
	}
	h := c.holds[i]
	c.holds = slices.Delete(c.holds, i, i+1)
	return h.request, true
}
