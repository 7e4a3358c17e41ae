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

// TestHeadsPassStuckCallers: a head goes on soon although another caller takes
// nothing of a body.
func TestHeadsPassStuckCallers(t *testing.T) {
	g := &Gateway{}
	head := func(w http.ResponseWriter) *passing {
		p := &passing{ResponseWriter: w, call: &call{g: g}}
		p.expect(4)
		p.answers = false // nothing is to be labelled
		p.WriteHeader(http.StatusOK)
		return p
	}
	caller := &stuck{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	first := head(caller)
	wrote := make(chan error)
	go func() {
		_, err := first.Write([]byte("body"))
		wrote <- err
	}()
	<-caller.writes
	g.heads.add(first) // as if it had come a moment ago
	reads := httptest.NewRecorder()
	second := head(reads)
	flushed := func() bool {
		second.mu.Lock()
		defer second.mu.Unlock()
		return reads.Flushed
	}
	for end := time.Now().Add(patience); !flushed(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the head of another answer waits for it")
		}
	}
	close(caller.reads)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}
