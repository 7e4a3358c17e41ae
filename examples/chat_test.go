package examples_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served is a gateway and its client.
type served struct {
	t    *testing.T
	http *http.Client
}

// serve starts a gateway that listens at an address, or only at its socket if that is empty. It must end in an
// orderly way.
func (u *user) serve(listen string) *served {
	u.t.Helper()
	said := new(bytes.Buffer)
	cmd := exec.Command(built(u.t, "bin", "gfaas"), "serve", "--listen", listen, "--gpu", "sim")
	cmd.Env, cmd.Dir, cmd.Stderr = u.env, u.dir, said
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(u.dir, "run", "gateway.sock"))
	}}
	u.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || u.t.Failed() {
			u.t.Errorf("gfaas serve: %v\n%s", err, said)
		}
	})
	s := &served{u.t, &http.Client{Transport: transport}}
	s.until("it is ready", func() bool {
		answer, err := s.http.Get("http://gateway/readyz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return s
}

func (s *served) until(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("it did not come to be: %s", what)
		}
	}
}

// chat requests a completion.
func (s *served) chat(ctx context.Context, body string) *http.Response {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// inFlight returns the number of calls in progress.
func (s *served) inFlight() (n int) {
	answer, err := s.http.Get("http://gateway/system/status")
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	var status struct {
		Functions []struct {
			InFlight int `json:"in_flight"`
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&status); err != nil {
		s.t.Fatal(err)
	}
	for _, f := range status.Functions {
		n += f.InFlight
	}
	return n
}

// completion is a whole answer or a piece of it.
type completion struct {
	Object  string
	Choices []struct {
		Message, Delta struct{ Role, Content string }
		Reason         string `json:"finish_reason"`
	}
	Usage struct {
		Total int `json:"total_tokens"`
	}
	Error struct{ Message, Type, Param string }
}

// TestChat calls the function that gfaas new --template openai writes, through a
// gateway and as OpenAI's clients do: as a whole, as a stream whose pieces are passed
// on at once, and with a client that disconnects.
func TestChat(t *testing.T) {
	needPython(t)
	u := newUser(t)
	s := u.serve("")
	u.do("gfaas", "new", "parrot", "--template", "openai", "-q")
	// A word takes 100 ms of the simulated GPU: 1000 turns of its 80 multiprocessors.
	u.edit("parrot/function.yaml", `env: {`, `env: {BLOCKS: "80000", `)
	u.do("gfaas", "apply", "-f", "parrot/function.yaml")
	s.until("it is listed", func() bool {
		answer, err := s.http.Get("http://gateway/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return strings.Contains(string(text), `"parrot"`)
	})
	decode := func(text []byte) (c completion) {
		t.Helper()
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return c
	}
	whole := func(body string) (int, completion) {
		t.Helper()
		answer := s.chat(t.Context(), body)
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.Header.Get("Gfaas-Instance") == "" {
			t.Fatalf("%d %s %v", answer.StatusCode, text, err)
		}
		return answer.StatusCode, decode(text)
	}

	// An answer has as many words as the last message, the same each time.
	const ask = `{"model": "parrot", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "a good  bird in a tree by the sea"}]`
	const words, total = 9, 2 + 9 + 9
	status, c := whole(ask + `}`)
	if status != 200 || c.Object != "chat.completion" || len(c.Choices) != 1 || len(strings.Fields(c.Choices[0].Message.Content)) != words ||
		c.Choices[0].Message.Role != "assistant" || c.Choices[0].Reason != "stop" || c.Usage.Total != total {
		t.Fatalf("%d %+v", status, c)
	}
	all := c.Choices[0].Message.Content
	two := strings.Join(strings.Fields(all)[:2], " ")
	if status, c := whole(ask + `, "max_tokens": 2}`); status != 200 || c.Choices[0].Message.Content != two || c.Choices[0].Reason != "length" {
		t.Errorf("%d %+v, want %q", status, c, two)
	}
	for _, wrong := range []string{`{"model": "parrot"}`, `{"model": "parrot", "messages": [{"role": "user"}]}`, ask + `, "stream": "yes"}`, ask + `, "max_tokens": 0}`} {
		if status, c := whole(wrong); status != 400 || c.Error.Type != "invalid_request_error" || c.Error.Message == "" || c.Error.Param == "" {
			t.Errorf("%s: %d %+v", wrong, status, c)
		}
	}
	if answer := s.chat(t.Context(), `{"model": "gpt", "messages": []}`); answer.StatusCode != 404 || answer.Header.Get("Gfaas-Reason") != "no-function" {
		t.Errorf("another model: %d %v", answer.StatusCode, answer.Header)
	}

	// On a busy machine, the test may read the first piece after the answer has ended,
	// and tries again.
	early := false
	for try := 0; try < 5 && !early; try++ {
		answer := s.chat(t.Context(), ask+`, "stream": true, "stream_options": {"include_usage": true}}`)
		if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%d %v", answer.StatusCode, answer.Header)
		}
		var said []string
		var last string
		counted := 0
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			event, found := strings.CutPrefix(lines.Text(), "data: ")
			if !found {
				continue
			}
			if last = event; event == "[DONE]" {
				continue
			}
			c := decode([]byte(event))
			counted += c.Usage.Total
			if c.Object != "chat.completion.chunk" {
				t.Errorf("%s", event)
			}
			if len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
				if said = append(said, c.Choices[0].Delta.Content); len(said) == 1 {
					early = s.inFlight() == 1
				}
			}
		}
		if lines.Err() != nil || len(said) != words || strings.Join(said, "") != all || last != "[DONE]" || counted != total {
			t.Errorf("%q, %s, %d tokens, %v, want %q", said, last, counted, lines.Err(), all)
		}
	}
	if !early {
		t.Error("the first piece was kept until the last had come")
	}

	// A client that disconnects frees its place long before the answer would have
	// ended.
	ctx, leave := context.WithCancel(t.Context())
	answer := s.chat(ctx, `{"model": "parrot", "stream": true, "messages": [{"role": "user", "content": "`+strings.Repeat("on ", 900)+`"}]}`)
	if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	leave()
	s.until("its place is free", func() bool { return s.inFlight() == 0 })
	if status, _ := whole(ask + `}`); status != 200 {
		t.Errorf("the next: %d, want 200", status)
	}
}
