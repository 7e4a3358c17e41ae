package ollama

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

// TestRequests checks the translation of requests. want is the body without the model.
func TestRequests(t *testing.T) {
	const ask = `"model": "m", "messages": [{"role": "user", "content": "hi"}]`
	const streamed = `"stream": true, "stream_options": {"include_usage": true}`
	const hi = `"messages": [{"role": "user", "content": "hi"}]`
	for _, c := range []struct{ name, path, body, to, want string }{
		{"chat", "chat", `{` + ask + `}`, "/v1/chat/completions", `{` + hi + `, ` + streamed + `}`},
		{"whole chat", "chat", `{` + ask + `, "stream": false}`, "/v1/chat/completions", `{` + hi + `}`},
		{"system and history", "chat", `{"model": "m", "stream": false, "messages": [{"role": "System", "content": "be kind"}, {"role": "assistant", "content": "yes", "thinking": "why"}, {"role": "user", "content": null}]}`,
			"/v1/chat/completions", `{"messages": [{"role": "system", "content": "be kind"}, {"role": "assistant", "content": "yes", "reasoning_content": "why"}, {"role": "user", "content": ""}]}`},
		{"options", "chat", `{` + ask + `, "stream": false, "options": {"temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["a", "b"], "num_predict": 9, "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 0.25, "num_ctx": 4096, "num_gpu": -1, "unknown": {}}}`,
			"/v1/chat/completions", `{` + hi + `, "temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["a", "b"], "max_tokens": 9, "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1, "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 0.25}`},
		{"options without effect", "chat", `{` + ask + `, "stream": false, "options": {"num_predict": -1, "seed": -1, "temperature": null}, "format": "", "tools": [], "think": null}`, "/v1/chat/completions", `{` + hi + `}`},
		{"JSON", "chat", `{` + ask + `, "stream": false, "format": "json"}`, "/v1/chat/completions", `{` + hi + `, "response_format": {"type": "json_object"}}`},
		{"schema", "chat", `{` + ask + `, "stream": false, "format": {"type": "object"}}`, "/v1/chat/completions",
			`{` + hi + `, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": {"type": "object"}}}}`},
		{"thinking", "chat", `{` + ask + `, "stream": false, "think": false}`, "/v1/chat/completions", `{` + hi + `, "chat_template_kwargs": {"enable_thinking": false}}`},
		{"level of thinking", "chat", `{` + ask + `, "stream": false, "think": "low"}`, "/v1/chat/completions", `{` + hi + `, "reasoning_effort": "low"}`},
		{"logprobs", "chat", `{` + ask + `, "stream": false, "logprobs": true, "top_logprobs": 2}`, "/v1/chat/completions", `{` + hi + `, "logprobs": true, "top_logprobs": 2}`},
		{"image", "chat", `{"model": "m", "stream": false, "messages": [{"role": "user", "content": "what?", "images": ["` + png + `"]}]}`, "/v1/chat/completions",
			`{"messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,` + png + `"}}]}]}`},
		{"tools", "chat", `{` + ask + `, "stream": false, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]}`, "/v1/chat/completions",
			`{` + hi + `, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]}`},
		{"results of tools", "chat", `{"model": "m", "stream": false, "messages": [
			{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}, {"id": "own", "function": {"name": "g"}}, {"function": {"name": "f", "arguments": {}}}]},
			{"role": "tool", "content": "of g", "tool_name": "g"}, {"role": "tool", "content": "of f", "tool_name": "f"}, {"role": "tool", "content": "of f again"}, {"role": "tool", "content": "of none"}]}`, "/v1/chat/completions",
			`{"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"id": "own", "type": "function", "function": {"name": "g", "arguments": "{}"}}, {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
			{"role": "tool", "content": "of g", "tool_call_id": "own", "name": "g"}, {"role": "tool", "content": "of f", "tool_call_id": "call_0", "name": "f"}, {"role": "tool", "content": "of f again", "tool_call_id": "call_2"}, {"role": "tool", "content": "of none", "tool_call_id": ""}]}`},
		{"results with IDs", "chat", `{"model": "m", "stream": false, "messages": [
			{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "f"}}]},
			{"role": "tool", "content": "1", "tool_call_id": "b"}, {"role": "tool", "content": "2", "tool_call_id": "elsewhere"}]}`, "/v1/chat/completions",
			`{"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}, {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
			{"role": "tool", "content": "1", "tool_call_id": "b"}, {"role": "tool", "content": "2", "tool_call_id": "elsewhere"}]}`},
		{"prompt", "generate", `{"model": "m", "prompt": "hi", "system": "be kind", "stream": false, "options": {"num_predict": 1}}`, "/v1/chat/completions",
			`{"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}], "max_tokens": 1}`},
		{"raw prompt", "generate", `{"model": "m", "prompt": "hi", "raw": true}`, "/v1/completions", `{"prompt": "hi", ` + streamed + `}`},
		{"insertion", "generate", `{"model": "m", "prompt": "def f(", "suffix": "return 1", "stream": false}`, "/v1/completions", `{"prompt": "def f(", "suffix": "return 1"}`},
		{"text", "embed", `{"model": "m", "input": "a", "truncate": true, "dimensions": 8}`, "/v1/embeddings", `{"input": "a", "encoding_format": "float", "dimensions": 8}`},
		{"texts", "embed", `{"model": "m", "input": ["a", "b"]}`, "/v1/embeddings", `{"input": ["a", "b"], "encoding_format": "float"}`},
		{"old form", "embeddings", `{"model": "m", "prompt": "a"}`, "/v1/embeddings", `{"input": "a", "encoding_format": "float"}`},
		{"chat without messages", "chat", `{"model": "m", "messages": []}`, "", `{}`},
		{"no prompt", "generate", `{"model": "m", "template": "x"}`, "", `{}`},
		{"no input", "embed", `{"model": "m", "input": []}`, "", `{}`},
		{"no prompt to embed", "embeddings", `{"model": "m"}`, "", `{}`},
	} {
		t.Run(c.path+" "+c.name, func(t *testing.T) {
			r, err := Parse("/api/"+c.path, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			text, err := r.Body("function")
			if err != nil {
				t.Fatal(err)
			}
			got, want := decoded(t, text), decoded(t, []byte(c.want))
			want["model"] = "function"
			if r.Model != "m" || r.Path != c.to || !reflect.DeepEqual(got, want) {
				t.Errorf("got %s %s, want %s %v", r.Path, text, c.to, want)
			}
		})
	}
}

func decoded(t *testing.T, text []byte) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return m
}

// TestRequestFaults checks the errors for malformed requests, and for requests that cannot be translated.
func TestRequestFaults(t *testing.T) {
	const ask = `{"model": "m", "messages": [{"role": "user", "content": "hi"}], `
	for _, c := range []struct{ path, body, want string }{
		{"chat", " ", "the request has no body"},
		{"chat", "[]", "invalid request body: "},
		{"chat", `{"messages": []}`, "model is required"},
		{"chat", `{"model": 7}`, "invalid request body: "},
		{"chat", ask + `"format": "xml"}`, `format: "xml", expected "json" or a JSON schema`},
		{"chat", ask + `"think": 3}`, "think: 3, expected true, false, or a level"},
		{"chat", ask + `"keep_alive": "soon"}`, `keep_alive: "soon", expected a number of seconds or a duration`},
		{"chat", ask + `"keep_alive": []}`, "keep_alive: [], "},
		{"chat", ask + `"options": {"temperature": "hot"}}`, `options.temperature: "hot", expected a number`},
		{"chat", ask + `"options": {"stop": [7]}}`, "options.stop: [7], expected a list of texts"},
		{"chat", `{"model": "m", "messages": [{"role": "user", "images": ["?"]}]}`, "messages[0]: images[0]: expected an image in base64"},
		{"chat", `{"model": "m", "messages": [{"role": "user", "images": ["` + png[:len(png)-1] + `"]}]}`, "messages[0]: images[0]: expected an image in base64"},
		{"chat", `{"model": "m", "messages": [{}, {"role": "user", "images": ["aGVsbG8="]}]}`, "messages[1]: images[0]: the data is of type text/plain; charset=utf-8, expected an image"},
		{"generate", `{"model": "m", "prompt": "a", "template": "{{ .Prompt }}"}`, "template is not supported"},
		{"generate", `{"model": "m", "prompt": "a", "context": [1]}`, "context is not supported"},
		{"generate", `{"model": "m", "prompt": "a", "raw": true, "images": ["x"]}`, "images: not allowed with raw or suffix"},
		{"generate", `{"model": "m", "prompt": "a", "suffix": "b", "system": "x"}`, "system: not allowed with raw or suffix"},
		{"generate", `{"model": "m", "prompt": "a", "raw": true, "logprobs": true}`, "logprobs: not allowed with raw or suffix"},
		{"embed", `{"model": "m", "input": 7}`, "input: expected a text or a list of texts"},
		{"embed", `{"model": "m", "input": [7]}`, "input: expected a text or a list of texts"},
		{"pull", `{"model": "m"}`, "/api/pull is not a path for requests to a model"},
	} {
		if r, err := Parse("/api/"+c.path, []byte(c.body)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s %s: got %+v, %v; want the error %q", c.path, c.body, r, err, c.want)
		}
	}
}

func TestKeepAlive(t *testing.T) {
	for value, want := range map[string]*time.Duration{
		`null`: nil, `0`: new(time.Duration(0)), `"0"`: new(time.Duration(0)), `"0s"`: new(time.Duration(0)), `1.5`: new(1500 * time.Millisecond), `"5m"`: new(5 * time.Minute),
		`-1`: new(Forever), `"-1s"`: new(Forever), `"-1"`: new(Forever), `1e300`: new(Forever), `"30"`: new(30 * time.Second),
	} {
		for _, path := range []string{"chat", "generate", "embed"} {
			r, err := Parse("/api/"+path, []byte(`{"model": "m", "keep_alive": `+value+`}`))
			if err != nil {
				t.Errorf("%s: %v", value, err)
				continue
			}
			if !reflect.DeepEqual(r.KeepAlive, want) {
				t.Errorf("%s: got %v, want %v", value, r.KeepAlive, want)
			}
			if unloads := path != "embed" && want != nil && *want == 0; r.Unloads() != unloads {
				t.Errorf("%s with keep_alive %s: got Unloads %t, want %t", path, value, r.Unloads(), unloads)
			}
		}
	}
}

// FuzzParse checks that every accepted request has a body that is a JSON object with the model's name.
func FuzzParse(f *testing.F) {
	f.Add("chat", `{"model": "m", "messages": [{"role": "tool", "content": "a", "images": ["`+png+`"], "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}], "options": {"stop": "x"}, "format": {}, "think": true}`)
	f.Add("generate", `{"model": "m", "prompt": "a", "raw": true, "keep_alive": "5m"}`)
	f.Add("embed", `{"model": "m", "input": ["a"]}`)
	f.Fuzz(func(t *testing.T, path, text string) {
		r, err := Parse("/api/"+path, []byte(text))
		if err != nil {
			return
		}
		body, err := r.Body("function")
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if got := decoded(t, body); got["model"] != "function" {
			t.Errorf("%q: got the model %v, want function", text, got["model"])
		}
	})
}
