package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/status"
)

// TestEvents follows the stream of status events until the gateway ends.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.NotFoundHandler(), nil)
	answer, err := http.Get("http://" + w.WebAddr().String() + "/system/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("got %s, %s; want 200 and text/event-stream", answer.Status, kind)
	}
	lines := bufio.NewScanner(answer.Body)
	next := func() (s status.Status) {
		t.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &s); err != nil {
					t.Fatal(err)
				}
				return s
			}
		}
		t.Fatal("the stream of events ended, want another event")
		return s
	}
	if s := next(); len(s.GPUs) != 1 || len(s.Functions) != 0 {
		t.Errorf("first event: got %+v, want one GPU and no functions", s)
	}
	if err := w.catalog.Apply(t.Context(), function.Function{Name: "f", Command: []string{"f"}}); err != nil {
		t.Fatal(err)
	}
	w.until("an event with the function", func() bool { return len(next().Functions) == 1 })
	go w.stop()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Errorf("at the gateway's end: got %v, want the end of the stream", err)
	}
}
