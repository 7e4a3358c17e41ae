package gfaas

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
)

// TestAsyncSurvivesKills kills the gateway ten times at random moments while it accepts 200 asynchronous calls. It
// must run each accepted call and deliver its answer. Only calls in progress at a kill may repeat.
func TestAsyncSurvivesKills(t *testing.T) {
	t.Parallel()
	const calls, kills, places = 200, 10, 16
	const patience = 2 * time.Minute
	w := build(t)
	dir, err := os.MkdirTemp("", "async")
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), w.environ(dir)...)
	t.Cleanup(func() {
		down(w.environ(dir))
		_ = os.RemoveAll(dir)
	})
	gfaas := func(args ...string) *exec.Cmd {
		cmd := exec.Command("gfaas", args...)
		cmd.Env, cmd.Dir = env, dir
		return cmd
	}
	file, ran := filepath.Join(dir, "f.yaml"), filepath.Join(dir, "ran") // one line per run
	if err := os.WriteFile(file, fmt.Appendf(nil, "name: echo\ncommand: [sh, -c, 'exec $FUNCTION >> %s']\n", ran), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := gfaas("apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("gfaas apply: %v: %s", err, out)
	}

	var mu sync.Mutex
	sends := map[string]int{}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := r.Header.Get("X-Call-Id")
		mu.Lock()
		defer mu.Unlock()
		sends[id]++
		if string(body) != id+"\n" || r.Header.Get("X-Function-Status") != "200" {
			t.Errorf("answer of call %s: got status %s and the body %q, want 200 and the ID", id, r.Header.Get("X-Function-Status"), body)
		}
	}))
	defer receiver.Close()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := gateway.Dial(filepath.Join(dir, "run"))
	defer client.Close()
	var served *exec.Cmd
	serve := func() {
		var stderr bytes.Buffer
		served = gfaas("serve", "--listen", "", "--gpu", "sim", "--pool", "4", "--queue-timeout", "1m", "--callback-allow", "127.0.0.1")
		served.Stderr = &stderr
		if err := served.Start(); err != nil {
			t.Fatal(err)
		}
		for !client.Answers(ctx) || !knows(ctx, client) {
			if ctx.Err() != nil {
				t.Fatalf("the gateway does not answer: %s", stderr.String())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	kill := func() {
		_ = served.Process.Kill()
		_ = served.Wait()
	}
	accept := func(id string) bool {
		answer, err := client.Send(ctx, http.MethodPost, "/async-function/echo",
			http.Header{"X-Call-Id": {id}, "X-Callback-Url": {receiver.URL}, "X-Print": {"1"}}, strings.NewReader(id+"\n"))
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusAccepted
	}
	serve()
	defer func() { kill() }()
	accepted := map[string]bool{}
	for n := range calls {
		if n%(calls/kills) == calls/kills/2 {
			victim := served.Process
			timer := time.AfterFunc(time.Duration(rand.Intn(100))*time.Millisecond, func() { _ = victim.Kill() })
			for more := 0; ; more++ { // until the gateway is dead
				id := fmt.Sprintf("more%d.%d", n, more)
				if !accept(id) {
					break
				}
				accepted[id] = true
			}
			timer.Stop()
			kill()
			serve()
		}
		id := fmt.Sprint("call", n)
		if !accept(id) {
			t.Fatalf("asynchronous call %s was not accepted", id)
		}
		accepted[id] = true
	}
	for id := range accepted {
		for state := ""; state != "done"; {
			var s struct{ State string }
			if err := client.Do(ctx, http.MethodGet, "/system/async/"+id, nil, &s); err != nil {
				t.Fatalf("status of the accepted %s: %v", id, err)
			}
			if state = s.State; state == "failed" {
				t.Fatalf("state of %s: got failed, want done", id)
			} else if state != "done" {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	text, err := os.ReadFile(ran)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]int{}
	for id := range strings.FieldsSeq(string(text)) {
		runs[id]++
	}
	mu.Lock()
	defer mu.Unlock()
	repeats := 0
	for id := range accepted {
		if runs[id] == 0 || sends[id] == 0 {
			t.Errorf("accepted %s: got %d runs and %d sent answers, want at least 1 of each", id, runs[id], sends[id])
		}
		repeats += max(runs[id]-1, 0) + max(sends[id]-1, 0)
	}
	t.Logf("%d accepted, %d repeats", len(accepted), repeats)
	if repeats > kills*places {
		t.Errorf("repeated runs and sends after %d kills: got %d, want at most %d per kill", kills, repeats, places)
	}
}

// knows reports whether the gateway knows the function.
func knows(ctx context.Context, client *gateway.Client) bool {
	return client.Do(ctx, http.MethodGet, "/system/function/echo", nil, nil) == nil
}
