package kernel

import (
	"context"
	"io"
	"runtime"
	"sync"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// held is the memory of the host that requests take from when they come until their
// answers are taken: bytes of their text, and then of what was read in it.
//
// A client may have as much of it as is left for the others: half where it is alone,
// a third where another has a third. So there is room for whoever comes, whatever
// those do that are there.
type held struct {
	budget int64
	slots  chan struct{} // for long texts that are parsed

	mu      sync.Mutex
	used    int64
	clients map[string]*share
}

// share is what a client has of that, while it has any.
type share struct {
	used  int64
	holds int           // how many there are
	turn  chan struct{} // for its long text that is parsed
}

// hold is what a request takes.
type hold struct {
	all   *held
	name  string // of the client
	of    *share
	bytes int64
	users int // who answers it and, while it has a place in the queue, the request
}

func newHeld(budget int64) *held {
	return &held{budget: budget, slots: make(chan struct{}, runtime.GOMAXPROCS(0)), clients: map[string]*share{}}
}

// begin is the hold of a client's request, which has nothing yet. Leave must follow.
func (a *held) begin(name string) *hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.clients[name]
	if s == nil {
		s = &share{turn: make(chan struct{}, 1)}
		a.clients[name] = s
	}
	s.holds++
	return &hold{all: a, name: name, of: s, users: 1}
}

// join is for another who needs it, and leaves it.
func (h *hold) join() {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.users++
}

// leave gives back what it has when nobody needs it any more.
func (h *hold) leave() {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	if h.users--; h.users > 0 {
		return
	}
	h.all.used -= h.bytes
	h.of.used -= h.bytes
	h.bytes = 0
	if h.of.holds--; h.of.holds == 0 {
		delete(h.all.clients, h.name)
	}
}

// want has it have so many bytes, in place of those that it has. Less there is always
// room for.
func (h *hold) want(bytes int64) *Problem {
	a := h.all
	a.mu.Lock()
	defer a.mu.Unlock()
	more := bytes - h.bytes
	switch {
	case more <= 0:
	case bytes > a.budget/2:
		return problem(kgraph.TooLarge, "", "the request takes %d bytes, expected at most %d: half of what all may", bytes, a.budget/2)
	case h.of.used+more > a.budget-a.used-more:
		return problem(CodeBusy, "", "%d bytes more of requests: those of %s that are not over take %d, all of them %d of %d, and as much is to be left as one client has",
			more, h.name, h.of.used, a.used, a.budget)
	}
	h.bytes = bytes
	h.of.used += more
	a.used += more
	return nil
}

// has is what all requests have, and those of each client.
func (a *held) has() (used int64, clients map[string]int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clients = map[string]int64{}
	for name, s := range a.clients {
		clients[name] = s.used
	}
	return a.used, clients
}

// parsing waits until a long text may be parsed, and says when it was. That takes
// many times its length for a moment: so each client has one at a time, and all have
// no more than there are processors.
func (h *hold) parsing(ctx context.Context) (over func(), p *Problem) {
	select {
	case h.of.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, problem(CodeInternal, "", "the caller has left")
	}
	select {
	case h.all.slots <- struct{}{}:
	case <-ctx.Done():
		<-h.of.turn
		return nil, problem(CodeInternal, "", "the caller has left")
	}
	return func() { <-h.all.slots; <-h.of.turn }, nil
}

// read reads the text of a request, for which room is found first.
func (h *hold) read(b *steady, length int64) ([]byte, *Problem) {
	if length >= 0 {
		if p := h.want(length); p != nil {
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
			if p := h.want(int64(size)); p != nil {
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

// What a request takes beside what was read: itself, and its place among those that
// touch the same objects, by key.
const (
	heldRequest = 1 << 10
	heldKey     = 128
)

// takes is about what a request that waits takes.
func takes(graph *kgraph.Request) int64 {
	total := heldRequest + graph.Held()
	for i := range graph.Buffers {
		if graph.Buffers[i].Key != "" {
			total += heldKey
		}
	}
	return total
}
