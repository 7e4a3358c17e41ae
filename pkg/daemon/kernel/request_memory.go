package kernel

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// requestBudget is the budget of host memory for requests in progress: for their text, then for the
// parsed request, until the answers are sent.
//
// A client may use at most as much as remains free for the others: half of the budget if it is
// alone, a third if another client uses a third. Hence a client that arrives always finds room,
// however large the demand of the others is.
type requestBudget struct {
	limit   int64
	parsers *semaphore.Weighted // limits how many long texts are parsed at once

	mu      sync.Mutex
	used    int64
	clients map[string]*share
}

// share is the part of the budget that one client uses. It exists while the client has a reservation.
type share struct {
	used         int64
	reservations int                 // number of reservations
	parser       *semaphore.Weighted // limits the client to one long text parsed at a time
}

// reservation is the memory that one request uses.
type reservation struct {
	budget *requestBudget
	name   string // of the client
	share  *share
	bytes  int64
	users  int // 1 for the HTTP handler, plus 1 while the request is queued or runs
}

func newRequestBudget(budget int64) *requestBudget {
	return &requestBudget{limit: budget, parsers: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))), clients: map[string]*share{}}
}

// reserve returns an empty reservation for a request of the named client. The caller must call
// release.
func (b *requestBudget) reserve(name string) *reservation {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.clients[name]
	if s == nil {
		s = &share{parser: semaphore.NewWeighted(1)}
		b.clients[name] = s
	}
	s.reservations++
	return &reservation{budget: b, name: name, share: s, users: 1}
}

// retain adds a user of the reservation, which must call release.
func (r *reservation) retain() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.users++
}

// release removes a user. The last one frees the memory.
func (r *reservation) release() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	if r.users--; r.users > 0 {
		return
	}
	r.budget.used -= r.bytes
	r.share.used -= r.bytes
	r.bytes = 0
	if r.share.reservations--; r.share.reservations == 0 {
		delete(r.budget.clients, r.name)
	}
}

// resize changes the size of the reservation to the given number of bytes. It returns a TooLarge
// problem if no request may be that large, and CodeBusy if the client's share is exhausted.
// Reducing the size never fails.
func (r *reservation) resize(bytes int64) *kgraph.Problem {
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	growth := bytes - r.bytes
	switch {
	case growth <= 0:
	case bytes > b.limit/2:
		return problem(kgraph.TooLarge, "", "the request needs %d bytes of host memory, expected at most %d, half of the limit for all requests", bytes, b.limit/2)
	case r.share.used+growth > b.limit-b.used-growth:
		return problem(CodeBusy, "", "%d more bytes for requests do not fit: the requests of %s use %d, all requests use %d of %d, and a client can use at most as much as remains for the others",
			growth, r.name, r.share.used, b.used, b.limit)
	}
	r.bytes = bytes
	r.share.used += growth
	b.used += growth
	return nil
}

// usage returns the bytes in use by all requests, and by the requests of each client.
func (b *requestBudget) usage() (used int64, clients map[string]int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clients = map[string]int64{}
	for name, s := range b.clients {
		clients[name] = s.used
	}
	return b.used, clients
}

// acquireParser waits until the caller may parse a long text, which for a moment takes many times
// its length. Each client parses one long text at a time, and all clients together as many as there
// are processors. The caller calls release afterwards. acquireParser fails if ctx ends.
func (r *reservation) acquireParser(ctx context.Context) (release func(), p *kgraph.Problem) {
	if r.share.parser.Acquire(ctx, 1) != nil {
		return nil, problem(CodeInternal, "", "the client has disconnected")
	}
	if r.budget.parsers.Acquire(ctx, 1) != nil {
		r.share.parser.Release(1)
		return nil, problem(CodeInternal, "", "the client has disconnected")
	}
	return func() { r.budget.parsers.Release(1); r.share.parser.Release(1) }, nil
}

// read reads the text of a request. It extends the reservation before it allocates memory. Text beyond
// kgraph.MaxRequest is cut off after one byte more.
func (r *reservation) read(b *bodyReader, length int64) ([]byte, *kgraph.Problem) {
	if length >= 0 {
		if p := r.resize(length); p != nil {
			return nil, p
		}
		text := make([]byte, length)
		if _, err := io.ReadFull(b, text); err != nil {
			return nil, b.problem(err)
		}
		return text, nil
	}
	var text []byte
	for len(text) <= kgraph.MaxRequest {
		if len(text) == cap(text) {
			size := min(max(2*cap(text), 4<<10), kgraph.MaxRequest+1)
			if p := r.resize(int64(size)); p != nil {
				return nil, p
			}
			text = append(make([]byte, 0, size), text...)
		}
		n, err := b.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, b.problem(err)
		}
	}
	return text, nil
}

// Memory that a request takes in addition to its graph: for itself, and for each object in
// client.deps.
const (
	requestOverhead = 1 << 10
	keyOverhead     = 128
)

// parsedSize estimates the memory that a parsed request takes until it has finished.
func parsedSize(graph *kgraph.Request) int64 {
	total := requestOverhead + graph.MemorySize()
	for i := range graph.Buffers {
		if b := &graph.Buffers[i]; b.Key != "" || b.Result {
			total += keyOverhead
		}
	}
	return total
}

// bodyReader reads a body as long as the caller keeps sending. It fails if no data arrive for
// stall, or if a MiB takes longer than twice that: a slow upload reserves memory that other
// requests could use.
type bodyReader struct {
	body        io.Reader
	control     *http.ResponseController
	stall       time.Duration // longest time without data
	nextUpdate  time.Time     // when to move the read deadline
	received    int           // bytes received of the current MiB
	mibDeadline time.Time     // deadline for the current MiB
}

func (s *bodyReader) Read(p []byte) (int, error) {
	if now := time.Now(); now.After(s.nextUpdate) {
		s.nextUpdate = now.Add(s.stall / 4)
		until := now.Add(s.stall)
		if s.mibDeadline.Before(until) {
			until = s.mibDeadline
		}
		_ = s.control.SetReadDeadline(until)
	}
	n, err := s.body.Read(p)
	if s.received += n; s.received >= 1<<20 {
		s.received, s.mibDeadline, s.nextUpdate = 0, time.Now().Add(2*s.stall), time.Time{}
	}
	return n, err
}

// clearDeadline removes the read deadline. The request may now wait and run for a long time.
func (s *bodyReader) clearDeadline() { _ = s.control.SetReadDeadline(time.Time{}) }

func (s *bodyReader) problem(err error) *kgraph.Problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if !time.Now().Before(s.mibDeadline) {
			return problem(CodeTimeout, "", "less than 1 MiB of the request arrived in %v", 2*s.stall)
		}
		return problem(CodeTimeout, "", "no byte of the request arrived for %v", s.stall)
	}
	return problem(kgraph.BadRequest, "", "the request is incomplete: %v", err)
}
