package async

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// serveUntilKilled serves a queue that calls functions at an address from the environment.
// It prints its own address and runs until it is killed.
func serveUntilKilled(dir string) int {
	functions := os.Getenv("GFAAS_TEST_FUNCTIONS")
	loopback, err := ParseAllowed("127.0.0.1")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	q, err := Open(Config{
		Dir: dir, Concurrency: 8, Retries: 3, CallbackRetries: 5, Max: 10_000, MaxAnswer: 1 << 20,
		Receivers: Receivers{Allow: []Allowed{loopback}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			out, err := http.NewRequestWithContext(r.Context(), r.Method, functions, r.Body)
			if err == nil {
				out.Header = r.Header
				var answer *http.Response
				if answer, err = http.DefaultClient.Do(out); err == nil {
					defer answer.Body.Close()
					w.Header().Set("Gfaas-Instance", "f-0")
					w.WriteHeader(answer.StatusCode)
					_, _ = io.Copy(w, answer.Body)
					return
				}
			}
			w.WriteHeader(http.StatusBadGateway)
		}),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, q.Pending())
			return
		}
		if err := q.Accept(Request{ID: r.Header.Get("X-Call-Id"), Function: "f", Header: r.Header, Body: r.Body}); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	q.Start()
	fmt.Println(s.URL)
	select {}
}

// TestKill accepts 200 calls while the daemon is killed ten times. Each call is run and its
// answer sent; only work that occupied a place at a kill is repeated.
func TestKill(t *testing.T) {
	const calls, kills, places = 200, 10, 8
	var mu sync.Mutex
	runs, sends := map[string]int{}, map[string]int{}
	count := func(in map[string]int, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		in[r.Header.Get("X-Call-Id")]++
	}
	functions := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count(runs, r)
		body, _ := io.ReadAll(r.Body)
		time.Sleep(time.Duration(rand.Intn(5)) * time.Millisecond)
		fmt.Fprintf(w, "%s has %d bytes", r.Header.Get("X-Call-Id"), len(body))
	}))
	defer functions.Close()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count(sends, r)
		body, _ := io.ReadAll(r.Body)
		if !strings.HasPrefix(string(body), r.Header.Get("X-Call-Id")+" has ") || r.Header.Get("X-Function-Status") != "200" {
			t.Errorf("answer of call %s: got status %s and the body %q, want status 200 and a body that begins with the ID", r.Header.Get("X-Call-Id"), r.Header.Get("X-Function-Status"), body)
		}
	}))
	defer receiver.Close()
	defer http.DefaultClient.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	dir := t.TempDir()
	var daemon *exec.Cmd
	var at string
	start := func() {
		daemon = exec.Command(os.Args[0])
		daemon.Env = append(os.Environ(), "GFAAS_TEST_ASYNC="+dir, "GFAAS_TEST_FUNCTIONS="+functions.URL)
		daemon.Stderr = os.Stderr
		out, err := daemon.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		at = strings.TrimSpace(line)
	}
	kill := func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	}
	accept := func(id string) bool {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(strings.Repeat("x", rand.Intn(100_000))))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Call-Id", id)
		r.Header.Set("X-Callback-Url", receiver.URL)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusAccepted
	}
	start()
	defer func() { kill() }()
	accepted := map[string]bool{}
	for n := range calls {
		if n%(calls/kills) == calls/kills/2 {
			victim := daemon.Process
			timer := time.AfterFunc(time.Duration(rand.Intn(30))*time.Millisecond, func() { _ = victim.Kill() })
			for id := fmt.Sprint("extra", n); accept(id); id += "x" { // until the daemon is dead
				accepted[id] = true
			}
			timer.Stop()
			kill()
			start()
		}
		id := fmt.Sprint(n)
		for !accept(id) {
			t.Fatalf("call %s was not accepted", id)
		}
		accepted[id] = true
	}
	for pending := ""; pending != "0"; {
		answer, err := http.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if pending = string(text); ctx.Err() != nil {
			t.Fatalf("%s calls have not ended after %v", pending, 2*patience)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for id := range accepted {
		if runs[id] == 0 || sends[id] == 0 {
			t.Errorf("accepted call %s: got %d runs and %d sent answers, want at least 1 of each", id, runs[id], sends[id])
		}
	}
	again := 0
	for id := range runs {
		again += max(runs[id]-1, 0) + max(sends[id]-1, 0)
	}
	t.Logf("%d accepted, %d repeats", len(accepted), again)
	if again > kills*places {
		t.Errorf("repeated runs and sends after %d kills: got %d, want at most %d per kill", kills, again, places)
	}
}
