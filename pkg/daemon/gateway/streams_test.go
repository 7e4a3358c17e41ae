package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestStreamsSurvive checks that a reload of the settings, a new version of the function, changes of other functions,
// parking of other instances, and the death of an instance neither lose nor double a chunk of 200 streams that are open
// meanwhile. Only the streams of the dead instance end early, and not as if they were complete.
func TestStreamsSurvive(t *testing.T) {
	t.Parallel()
	const (
		streams = 200
		each    = 3 // chunks between two events
		chunks  = 7 * each
	)
	var released [chunks]chan struct{}
	for i := range released {
		released[i] = make(chan struct{})
	}
	handler := pathHandlers{"/stream": func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for i, chunk := range released {
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-chunk:
			case <-r.Context().Done():
				return
			}
			_, _ = fmt.Fprintf(rw, "data: %s %d\n\n", r.URL.RawQuery, i)
		}
	}}
	p := &parker{away: map[string]bool{}}
	w := newWorld(t, nil, func(c *Config) {
		c.Park, c.Swapper, c.GPUs, c.Usage, c.Memory = ParkSwap, p, []GPU{{Name: "sim", Mem: int64(16 * gpu.GiB)}}, p.usage, p.memory
		c.Concurrency, c.Queue, c.Timeout = 8, 2*streams, time.Hour
	})
	p.observe(w, handler)
	server := func(version string) []function.Function {
		with := func(inflight, most int) func(*function.Function) {
			return func(f *function.Function) {
				f.GPUMem, f.Inflight, f.Scale.Max, f.Env = gpu.GiB, inflight, most, map[string]string{"VERSION": version}
			}
		}
		return []function.Function{fn("one", with(streams/2, 1)), fn("two", with(streams/4, 2))}
	}
	w.apply(server("1")...)
	large := func(f *function.Function) { f.GPUMem = 8 * gpu.GiB }
	w.apply(fn("idle", large), fn("large", large))

	var dead atomic.Value // ID of the instance that is killed
	dead.Store("")
	var received [streams]atomic.Int32
	var ended atomic.Int32
	on := map[string]int{} // streams by instance
	var bodies [streams]*http.Response
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	for i := range bodies {
		r, err := http.NewRequestWithContext(context.Background(), "GET", w.url(fmt.Sprintf("/function/%s/stream?%d", []string{"one", "two"}[i%2], i)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if bodies[i], err = transport.RoundTrip(r); err != nil || bodies[i].StatusCode != 200 {
			t.Fatalf("stream %d: got %+v, %v; want status 200", i, bodies[i], err)
		}
		on[bodies[i].Header.Get("Gfaas-Instance")]++
	}
	if got := slices.Sorted(maps.Values(on)); !slices.Equal(got, []int{streams / 4, streams / 4, streams / 2}) {
		t.Fatalf("streams by instance: got %v, want a half, a quarter and a quarter", on)
	}
	var readers sync.WaitGroup
	for i, answer := range bodies {
		readers.Go(func() {
			defer answer.Body.Close()
			defer ended.Add(1)
			in, id := bufio.NewReader(answer.Body), answer.Header.Get("Gfaas-Instance")
			for n := 0; ; n++ {
				text, err := in.ReadString('\n')
				switch want := fmt.Sprintf("data: %d %d\n", i, n); {
				case err == nil && text == want:
				case err == io.EOF && text == "" && n == chunks:
					return
				case err != nil && err != io.EOF && id == dead.Load() && strings.HasPrefix(want, text):
					return
				default:
					t.Errorf("stream %d of %s, chunk %d: got %q, %v; want each chunk once, in order", i, id, n, text, err)
					return
				}
				if text, err := in.ReadString('\n'); err == nil && text != "\n" {
					t.Errorf("stream %d: got %q after chunk %d, want the end of the event", i, text, n)
				}
				received[i].Add(1)
			}
		})
	}
	sent := 0
	more := func(during string) { // sends chunks to all streams
		for range each {
			close(released[sent])
			sent++
		}
		w.until("all streams have received "+fmt.Sprint(sent)+" chunks "+during, func() bool {
			for i := range received {
				if id := bodies[i].Header.Get("Gfaas-Instance"); int(received[i].Load()) < sent && id != dead.Load() {
					return false
				}
			}
			return true
		})
	}
	more("at first")
	w.Gateway.cfg.Reload = func() (Settings, error) { return Settings{}, nil }
	if err := w.Gateway.reload(); err != nil {
		t.Fatal(err)
	}
	more("after a reload")
	w.apply(fn("other"))
	w.remove("other")
	more("after changes of another function")
	for _, name := range []string{"idle", "large", "idle"} { // 13 of 16 GiB are free
		if a := w.do("POST", "/function/"+name, ""); a.status != 200 {
			t.Fatalf("got %+v; want status 200", a)
		}
	}
	if did := fmt.Sprint(p.list()); !strings.Contains(did, "park idle.") || !strings.Contains(did, "park large.") {
		t.Errorf("got %s, want both instances parked", did)
	}
	more("after parking")
	w.apply(server("2")...)
	more("after a new version")
	victim := bodies[1].Header.Get("Gfaas-Instance")
	dead.Store(victim)
	w.runtime.Kill(victim, 137)
	w.until("the streams of the dead instance have ended", func() bool { return int(ended.Load()) == on[victim] })
	more("after the death of an instance")
	more("until the end")
	readers.Wait()
	w.awaitNoCalls()
}
