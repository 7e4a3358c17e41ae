package ollama

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// request parses a request for the tests of answers.
func request(t testing.TB, path, more string) *Request {
	t.Helper()
	r, err := Parse("/api/"+path, []byte(`{"model": "m:latest", "prompt": "p", "input": "i", "messages": [{"role": "user", "content": "p"}]`+more+`}`))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// translate translates an answer whose body arrives in parts of n bytes. Each reading of the clock advances it by
// a millisecond.
func translate(r *Request, status int, header http.Header, body string, n int) (lines string, sent int, whole []byte, err error) {
	var out bytes.Buffer
	began := time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC)
	clock := began
	a := r.NewAnswer(&out, 1<<20, began, func() time.Time { clock = clock.Add(time.Millisecond); return clock })
	a.Begin(status, header, 20*time.Millisecond, 30*time.Millisecond)
	for len(body) > 0 && err == nil {
		part := body[:min(n, len(body))]
		body = body[len(part):]
		_, err = a.Write([]byte(part))
	}
	if err == nil {
		sent, whole, err = a.End()
	}
	return out.String(), sent, whole, err
}

var events, document = http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, http.Header{"Content-Type": {"application/json"}}

// delta returns an event with a delta.
func delta(text string) string {
	return `data: {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": ` + text + `}]}` + "\n\n"
}

const (
	finish = `data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}` + "\n\n"
	counts = `data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

// TestStreams checks the translation of streams that arrive in parts of several sizes. want has the lines without
// model, time and durations.
func TestStreams(t *testing.T) {
	const last = `{"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop"}`
	say := func(text string) string {
		return `{"message": {"role": "assistant", "content": "` + text + `"}, "done": false}`
	}
	for _, c := range []struct {
		name, path, body string
		want             []string
	}{
		{"chat", "chat", delta(`{"role": "assistant", "content": ""}`) + delta(`{"content": "a"}`) + delta(`{"content": " b"}`) + finish + counts + done,
			[]string{say("a"), say(" b"), `{"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 2}`}},
		{"CRLF, comments, other fields", "chat", ": waiting\r\n\r\nevent: x\r\nid: 7\r\ndata:{\"choices\": [{\"delta\":\r\ndata: {\"content\": \"a\"}}]}\r\n\r\n" + strings.ReplaceAll(finish+done, "\n", "\r\n"), []string{say("a"), last}},
		{"no [DONE]", "chat", delta(`{"content": "a"}`) + finish, []string{say("a"), last}},
		{"no line feed at the end", "chat", delta(`{"content": "a"}`) + strings.TrimRight(finish, "\n"), []string{say("a"), last}},
		{"no reason", "chat", delta(`{"content": "a"}`) + done, []string{say("a"), last}},
		{"text after the end", "chat", done + delta(`{"content": "a"}`), []string{last}},
		{"length", "chat", strings.Replace(finish, "stop", "length", 1), []string{strings.Replace(last, "stop", "length", 1)}},
		{"other choices", "chat", `data: {"choices": [{"index": 1, "delta": {"content": "no"}}]}` + "\n\n" + finish, []string{last}},
		{"thinking", "chat", delta(`{"reasoning_content": "hm", "reasoning": "hm"}`) + delta(`{"reasoning": "!"}`) + delta(`{"content": "a"}`) + finish,
			[]string{`{"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": false}`, `{"message": {"role": "assistant", "content": "", "thinking": "!"}, "done": false}`, say("a"), last}},
		{"tools", "chat", delta(`{"content": null, "tool_calls": [{"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}]}`) +
			delta(`{"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":"}}]}`) + delta(`{"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}, {"index": 1, "id": "y", "function": {"name": "g", "arguments": {"b": 2}}}]}`) +
			delta(`{"tool_calls": [{"index": 3, "id": "z", "function": {"name": "h"}}]}`) + strings.Replace(finish, "stop", "tool_calls", 1) + done,
			[]string{`{"message": {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}, {"id": "y", "function": {"index": 1, "name": "g", "arguments": {"b": 2}}}, {"id": "z", "function": {"index": 3, "name": "h", "arguments": {}}}]}, "done": false}`, last}},
		{"logprobs", "chat", `data: {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -1}]}}]}` + "\n\n" + finish,
			[]string{`{"message": {"role": "assistant", "content": "a"}, "logprobs": [{"token": "a", "logprob": -1}], "done": false}`, last}},
		{"generate", "generate", delta(`{"content": "a", "reasoning_content": "hm"}`) + finish, []string{`{"response": "a", "thinking": "hm", "done": false}`, `{"response": "", "done": true, "done_reason": "stop"}`}},
		{"completion", "generate", `data: {"choices": [{"index": 0, "text": "a", "logprobs": {"tokens": ["a"]}}]}` + "\n\n" + `data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}` + "\n\n" + done,
			[]string{`{"response": "a", "done": false}`, `{"response": "", "done": true, "done_reason": "length"}`}},
		{"error event", "chat", delta(`{"content": "a"}`) + `data: {"error": {"message": "out of memory", "type": "server_error"}}` + "\n\n" + finish + done, []string{say("a"), `{"error": "out of memory"}`}},
		{"old error event", "chat", `data: {"object": "error", "message": "out of memory"}` + "\n\n", []string{`{"error": "out of memory"}`}},
		{"ends early", "chat", delta(`{"content": "a"}`), []string{say("a"), `{"error": "the instance ended its stream before the end of the answer"}`}},
		{"no JSON", "chat", "data: hello\n\n" + delta(`{"content": "a"}`) + finish, []string{`{"error": "the instance's answer is not JSON of the expected form: invalid character 'h' looking for beginning of value"}`}},
		{"arguments of a tool that are no object", "chat", delta(`{"tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}`) + finish,
			[]string{`{"error": "the model called the tool f with arguments that are not a JSON object: [1"}`}},
		{"index of a tool", "chat", delta(`{"tool_calls": [{"index": 1000000000, "function": {"name": "f"}}]}`) + finish, []string{`{"error": "the call of a tool has the index 1000000000, expected 0 to 1023"}`}},
	} {
		for _, n := range []int{1, 7, 1 << 20} {
			lines, _, whole, _ := translate(request(t, c.path, ""), http.StatusOK, events, c.body, n)
			got := strings.Split(strings.TrimSuffix(lines, "\n"), "\n")
			if len(got) != len(c.want) || whole != nil {
				t.Errorf("%s, in parts of %d bytes: got\n%s%s\nwant\n%s", c.name, n, lines, whole, strings.Join(c.want, "\n"))
				continue
			}
			for i := range got {
				it, want := decoded(t, []byte(got[i])), decoded(t, []byte(c.want[i]))
				if _, failed := it["error"]; !failed && it["model"] != "m:latest" {
					t.Errorf("%s, line %d: got the model %v, want m:latest", c.name, i, it["model"])
				}
				for _, key := range []string{"model", "created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration"} {
					delete(it, key)
				}
				if !reflect.DeepEqual(it, want) {
					t.Errorf("%s, in parts of %d bytes, line %d: got %s, want %s", c.name, n, i, got[i], c.want[i])
				}
			}
		}
	}
}

// TestLongLines checks that lines of 1 MiB are translated, and that lines and events of more than 8 MiB are errors.
func TestLongLines(t *testing.T) {
	text := strings.Repeat("x", 1<<20)
	lines, _, _, err := translate(request(t, "chat", ""), http.StatusOK, events, delta(`{"content": "`+text+`"}`)+finish, 32<<10)
	if first, _, _ := strings.Cut(lines, "\n"); err != nil || !strings.Contains(first, text) {
		t.Errorf("got %d bytes, %v; want a line with the text of 1 MiB", len(lines), err)
	}
	lines, _, _, err = translate(request(t, "chat", ""), http.StatusOK, events, strings.Repeat("data: "+text, 9), 32<<10)
	if want := "{\"error\":\"a line of the stream is longer than 8 MiB\"}\n"; err == nil || lines != want {
		t.Errorf("9 MiB without a line feed: got %.200q, %v; want an error and %q", lines, err, want)
	}
	lines, _, _, err = translate(request(t, "chat", ""), http.StatusOK, events, strings.Repeat("data: "+text+"\n", 9), 32<<10)
	if want := "{\"error\":\"an event of the stream is longer than 8 MiB\"}\n"; err == nil || lines != want {
		t.Errorf("an event of 9 MiB: got %.200q, %v; want an error and %q", lines, err, want)
	}
}

// TestWholeAnswers checks answers that are not streams.
func TestWholeAnswers(t *testing.T) {
	const text = `{"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a b", "reasoning_content": "hm"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}`
	head := `{"model":"m:latest","created_at":"2026-01-02T03:04:05.00`
	for _, c := range []struct {
		name, path, more string
		status           int
		header           http.Header
		body             string
		wantStatus       int
		want             string
	}{
		{"chat", "chat", "", 200, document, text + `}`, 200,
			head + `2006Z","message":{"role":"assistant","content":"a b","thinking":"hm"},"done":true,"done_reason":"length","total_duration":3000000,"load_duration":20000000,"prompt_eval_count":5,"eval_count":2}`},
		{"timings of llama.cpp", "chat", "", 200, document, text + `, "timings": {"prompt_ms": 12.5, "predicted_ms": 40}}`, 200,
			head + `2006Z","message":{"role":"assistant","content":"a b","thinking":"hm"},"done":true,"done_reason":"length","total_duration":3000000,"load_duration":20000000,"prompt_eval_count":5,"prompt_eval_duration":12500000,"eval_count":2,"eval_duration":40000000}`},
		{"tools", "chat", "", 200, document, `{"choices": [{"message": {"content": null, "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]}`, 200,
			head + `1006Z","message":{"role":"assistant","content":"","tool_calls":[{"id":"x","function":{"index":0,"name":"f","arguments":{}}}]},"done":true,"done_reason":"stop","total_duration":2000000,"load_duration":20000000}`},
		{"events in answer to a request for a whole", "chat", "", 200, events, delta(`{"content": "a"}`) + delta(`{"content": "b"}`) + finish + counts + done, 200,
			head + `2006Z","message":{"role":"assistant","content":"ab"},"done":true,"done_reason":"stop","total_duration":3000000,"load_duration":20000000,"prompt_eval_count":5,"eval_count":2,"eval_duration":2000000}`},
		{"completion", "generate", `, "raw": true`, 200, document, `{"choices": [{"text": "a", "finish_reason": "stop"}]}`, 200,
			head + `2006Z","response":"a","done":true,"done_reason":"stop","total_duration":3000000,"load_duration":20000000}`},
		{"embeddings", "embed", "", 200, document, `{"data": [{"index": 1, "embedding": [3]}, {"index": 0, "embedding": [1, 2]}], "usage": {"prompt_tokens": 4}}`, 200,
			`{"model":"m:latest","embeddings":[[1,2],[3]],"total_duration":1000000,"load_duration":20000000,"prompt_eval_count":4}`},
		{"an embedding in the old form", "embeddings", "", 200, document, `{"data": [{"embedding": [1, 2]}]}`, 200, `{"embedding":[1,2]}`},
		{"error of the gateway", "chat", "", 404, document, `{"error": {"message": "no such function: m", "type": "invalid_request_error", "code": "model_not_found", "param": "model"}}`, 404, `{"error":"no such function: m"}`},
		{"error in Ollama's form", "chat", "", 500, document, `{"error": "too large"}`, 500, `{"error":"too large"}`},
		{"error of vLLM", "embed", "", 400, document, `{"object": "error", "message": "too long"}`, 400, `{"error":"too long"}`},
		{"error of FastAPI", "chat", "", 405, document, `{"detail": "Method Not Allowed"}`, 405, `{"error":"Method Not Allowed"}`},
		{"error as text", "chat", "", 502, nil, "<h1>\xff bad</h1>\n", 502, `{"error":"\u003ch1\u003e` + "\uFFFD" + ` bad\u003c/h1\u003e"}`},
		{"error without text", "chat", "", 503, nil, "", 503, `{"error":"the instance answered with an error that has no text"}`},
		{"error in place of a stream", "chat", `, "stream": true`, 503, events, `{"error": {"message": "loading"}}`, 503, `{"error":"loading"}`},
		{"no JSON", "chat", "", 200, document, "<html>", 0, "the instance's answer is not JSON of the expected form: "},
		{"an error with status 200", "chat", "", 200, document, `{"error": {"message": "out of memory"}}`, 0, "out of memory"},
		{"no embeddings", "embed", "", 200, document, `{"data": []}`, 0, "the instance's answer has no embeddings"},
		{"embeddings in base64", "embed", "", 200, document, `{"data": [{"embedding": "AACAPw=="}]}`, 0, "the instance's answer has an embedding that is not a list of numbers"},
		{"encoding", "chat", "", 200, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, "\x1f\x8b", 0, `the answer has the encoding "gzip"`},
		{"encoding of a stream", "chat", `, "stream": true`, 200, http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"br"}}, "x", 0, `the answer has the encoding "br"`},
		{"long", "chat", "", 200, document, `"` + strings.Repeat("x", 1<<20), 0, "the answer is longer than 1048576 bytes"},
	} {
		more := c.more
		if c.path != "embed" && c.path != "embeddings" && !strings.Contains(more, "stream") {
			more += `, "stream": false`
		}
		for _, n := range []int{1000, 1 << 21} {
			lines, status, body, err := translate(request(t, c.path, more), c.status, c.header, c.body, n)
			got := strings.TrimSuffix(string(body), "\n")
			if err != nil {
				got = err.Error()
			}
			if lines != "" || status != c.wantStatus || got != c.want && (err == nil || !strings.HasPrefix(got, c.want)) {
				t.Errorf("%s: got %s%d %s, want %d %s", c.name, lines, status, got, c.wantStatus, c.want)
			}
		}
	}
}

// TestStreamOfServerWithoutStreams checks that an answer in one piece becomes the only line of a stream.
func TestStreamOfServerWithoutStreams(t *testing.T) {
	lines, status, body, err := translate(request(t, "chat", ""), http.StatusOK, document, `{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}`, 10)
	if it := decoded(t, body); err != nil || status != http.StatusOK || lines != "" || it["done"] != true || fmt.Sprint(it["message"]) != "map[content:a role:assistant]" {
		t.Errorf("got %s%d %s, %v; want one line with the text", lines, status, body, err)
	}
}

// TestMetricsOfStream checks the durations in the last line of a stream. The call waited for 30 ms, and each reading
// of the clock advances it by 1 ms.
func TestMetricsOfStream(t *testing.T) {
	r := request(t, "chat", "")
	var out bytes.Buffer
	began := time.Unix(0, 0)
	now := began.Add(50 * time.Millisecond)
	a := r.NewAnswer(&out, 0, began, func() time.Time { return now })
	a.Begin(http.StatusOK, events, 20*time.Millisecond, 30*time.Millisecond)
	_, _ = a.Write([]byte(delta(`{"content": "a"}`)))
	now = now.Add(time.Second)
	_, _ = a.Write([]byte(finish + counts + done))
	if _, _, err := a.End(); err != nil {
		t.Fatal(err)
	}
	var got metrics
	lines := strings.Split(out.String(), "\n")
	if err := json.Unmarshal([]byte(lines[1]), &got); err != nil {
		t.Fatal(err)
	}
	if want := (metrics{1050 * time.Millisecond, 20 * time.Millisecond, 5, 20 * time.Millisecond, 2, time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestLoaded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6789, time.FixedZone("", 3600))
	for _, c := range []struct{ path, body, want string }{
		{"chat", `{"model": "m"}`, `{"model":"m","created_at":"2026-01-02T02:04:05.000006Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}`},
		{"generate", `{"model": "m", "keep_alive": 0}`, `{"model":"m","created_at":"2026-01-02T02:04:05.000006Z","response":"","done":true,"done_reason":"unload"}`},
		{"embed", `{"model": "m", "keep_alive": 0}`, `{"model":"m","embeddings":[]}`},
		{"embeddings", `{"model": "m"}`, `{"embedding":[]}`},
	} {
		r, err := Parse("/api/"+c.path, []byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(r.Loaded(now)); got != c.want+"\n" {
			t.Errorf("%s %s: got %s, want %s", c.path, c.body, got, c.want)
		}
	}
}

// FuzzStream checks that the lines of JSON do not depend on the sizes of the parts in which an arbitrary stream
// arrives, and that the last line ends the answer or is an error.
func FuzzStream(f *testing.F) {
	f.Add(delta(`{"content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}`)+finish+counts+done, 3)
	f.Add("data: {\"error\": \"x\"}\r\n\r\n: comment\n\n", 1)
	f.Fuzz(func(t *testing.T, body string, n int) {
		parts := func(n int) (lines []string) {
			r := request(t, "chat", "")
			var out bytes.Buffer
			a := r.NewAnswer(&out, 1<<20, time.Time{}, func() time.Time { return time.Time{} })
			a.Begin(http.StatusOK, events, 0, 0)
			rest := body
			for err := error(nil); len(rest) > 0 && err == nil; {
				part := rest[:min(n, len(rest))]
				rest = rest[len(part):]
				_, err = a.Write([]byte(part))
			}
			if a.failed == nil {
				if _, _, err := a.End(); err != nil {
					t.Fatalf("%q: %v", body, err)
				}
			}
			return strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
		}
		whole := parts(len(body) + 1)
		if pieces := parts(max(n%100, 1)); !reflect.DeepEqual(whole, pieces) {
			t.Errorf("%q: got %q, and in parts of %d bytes %q", body, whole, max(n%100, 1), pieces)
		}
		for i, line := range whole {
			it := decoded(t, []byte(line))
			if _, failed := it["error"]; i == len(whole)-1 != (failed || it["done"] == true) {
				t.Errorf("%q: line %d of %d is %s", body, i, len(whole), line)
			}
		}
	})
}

// FuzzAnswer checks that the translation of an arbitrary answer is JSON or an error.
func FuzzAnswer(f *testing.F) {
	f.Add("chat", 200, `{"choices": [{"message": {"content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}`)
	f.Add("embed", 200, `{"data": [{"embedding": [1]}]}`)
	f.Add("generate", 500, `{"error": {"message": "x"}}`)
	f.Fuzz(func(t *testing.T, path string, status int, body string) {
		if !Answers("/api/" + path) {
			return
		}
		_, _, text, err := translate(request(t, path, `, "stream": false`), status, document, body, 100)
		if err == nil && !json.Valid(text) {
			t.Errorf("%s %d %q: got %q, want JSON", path, status, body, text)
		}
	})
}
