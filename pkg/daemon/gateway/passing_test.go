package gateway

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// stuck is a caller that does not read.
type stuck struct {
	http.ResponseWriter
	writes, reads chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.writes <- struct{}{}
	<-s.reads
	return s.ResponseWriter.Write(p)
}

// head is an answer whose head has come.
func head(g *Gateway, w http.ResponseWriter) *passing {
	p := &passing{ResponseWriter: w, call: &call{g: g}}
	p.expect(4)
	p.answers = false // nothing is to be labelled
	p.WriteHeader(http.StatusOK)
	return p
}

// untilFlushed waits until a caller has the head.
func untilFlushed(t *testing.T, p *passing, caller *httptest.ResponseRecorder) {
	t.Helper()
	flushed := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return caller.Flushed
	}
	for end := time.Now().Add(patience); !flushed(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the head of another answer waits for it")
		}
	}
}

// unread is a caller that does not read, not even a head.
type unread struct {
	http.ResponseWriter
	flushes, reads chan struct{}
}

func (u *unread) Flush() {
	u.flushes <- struct{}{}
	<-u.reads
}

// TestHeadsPassStuckHeads: a head goes on soon although another caller does not take
// the one before it.
func TestHeadsPassStuckHeads(t *testing.T) {
	g := &Gateway{}
	timer := time.AfterFunc(time.Hour, func() {}) // both are flushed together, below
	defer timer.Stop()
	g.heads.timer = timer
	caller := &unread{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	first := head(g, caller)
	reads := httptest.NewRecorder()
	second := head(g, reads)
	go g.heads.flush()
	<-caller.flushes
	untilFlushed(t, second, reads)
	close(caller.reads)
	first.over()
}

// TestHeadsPassStuckCallers: a head goes on soon although another caller takes
// nothing of a body.
func TestHeadsPassStuckCallers(t *testing.T) {
	g := &Gateway{}
	caller := &stuck{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	first := head(g, caller)
	wrote := make(chan error)
	go func() {
		_, err := first.Write([]byte("body"))
		wrote <- err
	}()
	<-caller.writes
	g.heads.add(first) // as if it had come a moment ago
	reads := httptest.NewRecorder()
	second := head(g, reads)
	untilFlushed(t, second, reads)
	close(caller.reads)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}
