// Package ollama translates requests of Ollama's API to requests of OpenAI's API, which model servers
// understand, and translates the answers of these servers back. It does no I/O: pkg/daemon/gateway/api
// reads the requests, and sends them as calls of functions.
//
//	POST /api/chat        POST /v1/chat/completions
//	POST /api/generate    POST /v1/chat/completions; with raw or suffix: POST /v1/completions
//	POST /api/embed       POST /v1/embeddings
//	POST /api/embeddings  POST /v1/embeddings
//
// A Request is a request of the left column. An Answer translates the answer to the request of the right column.
// The formats are those of Ollama's documentation of its API.
package ollama

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Forever is the KeepAlive of a request for a model that is never unloaded because it is idle.
const Forever time.Duration = math.MaxInt64

// Request is a request of Ollama's API for an answer of a model.
type Request struct {
	Model string // as the client wrote it

	// Path is the path of OpenAI's API to which the translated request is sent. It is empty if the request
	// has no input. Such a request loads the model or, if Unloads reports true, unloads it.
	Path string

	KeepAlive *time.Duration // how long to keep an idle model after the request; nil if the request has no keep_alive

	path    string         // of Ollama's API
	unloads bool           // as in endpoint
	stream  bool           // the client wants a stream
	body    map[string]any // body of the translated request, without the model
}

// endpoint is a path of Ollama's API.
type endpoint struct {
	streams bool // the answer is a stream, unless the request has "stream": false
	unloads bool // a request without input and with "keep_alive": 0 unloads the model
	parse   func(*Request, *input) error
}

// endpoints holds the paths that Parse accepts.
var endpoints = map[string]endpoint{
	pathChat:       {streams: true, unloads: true, parse: (*Request).chat},
	pathGenerate:   {streams: true, unloads: true, parse: (*Request).generate},
	pathEmbed:      {parse: (*Request).embed},
	pathEmbeddings: {parse: (*Request).embed},
}

const (
	pathChat       = "/api/chat"
	pathGenerate   = "/api/generate"
	pathEmbed      = "/api/embed"
	pathEmbeddings = "/api/embeddings"
)

// Answers reports whether Parse accepts requests for a path.
func Answers(path string) bool { return endpoints[path].parse != nil }

// input is the body of a request. Each path uses some of the members.
type input struct {
	Model     string
	Stream    *bool
	KeepAlive json.RawMessage `json:"keep_alive"`
	Options   map[string]json.RawMessage
	Format    json.RawMessage
	Think     json.RawMessage

	Logprobs    bool
	TopLogprobs int `json:"top_logprobs"`

	Messages []message // chat
	Tools    json.RawMessage

	Prompt, System, Suffix, Template string // generate; embeddings has a prompt, too
	Images                           []string
	Context                          []json.RawMessage
	Raw                              bool

	Input      json.RawMessage // embed
	Dimensions int
}

// message is a message of a chat.
type message struct {
	Role, Content, Thinking string
	Images                  []string
	ToolCalls               []toolCall `json:"tool_calls"`
	ToolName                string     `json:"tool_name"`
	ToolCallID              string     `json:"tool_call_id"`
}

// toolCall is a call of a tool by the model, in Ollama's form.
type toolCall struct {
	ID       string   `json:"id,omitempty"`
	Function toolFunc `json:"function"`
}

type toolFunc struct {
	Index     int             `json:"index"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // an object
}

// Parse parses the body of a request, and translates it. It fails if Answers(path) is false, the body is malformed, or
// the request uses a feature that OpenAI's API does not have. The text of the error is for the client.
func Parse(path string, body []byte) (*Request, error) {
	e, ok := endpoints[path]
	if !ok {
		return nil, fmt.Errorf("%s is not a path for requests to a model", path)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, errors.New("the request has no body")
	}
	var in input
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("invalid request body: %w", err)
	}
	if in.Model == "" {
		return nil, errors.New("model is required")
	}
	r := &Request{
		Model: in.Model, path: path, unloads: e.unloads, body: map[string]any{},
		stream: e.streams && (in.Stream == nil || *in.Stream),
	}
	var err error
	if r.KeepAlive, err = keepAlive(in.KeepAlive); err != nil {
		return nil, err
	}
	if err := e.parse(r, &in); err != nil {
		return nil, err
	}
	return r, nil
}

// Unloads reports whether the request asks only to unload the model: it has no input, and its keep_alive is 0.
func (r *Request) Unloads() bool {
	return r.Path == "" && r.unloads && r.KeepAlive != nil && *r.KeepAlive == 0
}

// Body returns the body of the translated request. model is the name that the server expects.
func (r *Request) Body(model string) ([]byte, error) {
	r.body["model"] = model
	return json.Marshal(r.body)
}

// keepAlive parses keep_alive: a number of seconds, or a duration like "5m". It returns nil if there is none.
func keepAlive(raw json.RawMessage) (*time.Duration, error) {
	var value any
	if len(raw) == 0 || json.Unmarshal(raw, &value) != nil || value == nil {
		return nil, nil
	}
	if text, ok := value.(string); ok {
		if d, err := time.ParseDuration(text); err == nil {
			return keepAliveOf(d.Seconds()), nil
		}
		if seconds, err := strconv.ParseFloat(text, 64); err == nil {
			value = seconds
		}
	}
	if seconds, ok := value.(float64); ok && !math.IsNaN(seconds) {
		return keepAliveOf(seconds), nil
	}
	return nil, fmt.Errorf(`keep_alive: %.100s, expected a number of seconds or a duration like "5m"`, raw)
}

// keepAliveOf converts seconds to a KeepAlive. Negative and very large numbers become Forever.
func keepAliveOf(seconds float64) *time.Duration {
	if seconds < 0 || seconds >= Forever.Seconds() {
		return new(Forever)
	}
	return new(time.Duration(seconds * float64(time.Second)))
}

// chat translates a request for the next message of a chat.
func (r *Request) chat(in *input) error {
	if len(in.Messages) == 0 {
		return nil
	}
	var messages []map[string]any
	var calls pending
	for n, m := range in.Messages {
		content, err := contentOf(m.Content, m.Images)
		if err != nil {
			return fmt.Errorf("messages[%d]: %w", n, err)
		}
		out := map[string]any{"role": strings.ToLower(m.Role), "content": content}
		if m.Thinking != "" {
			out["reasoning_content"] = m.Thinking
		}
		if len(m.ToolCalls) > 0 {
			out["tool_calls"] = calls.made(m.ToolCalls)
		}
		if out["role"] == "tool" {
			out["tool_call_id"] = calls.answered(m)
			if m.ToolName != "" {
				out["name"] = m.ToolName
			}
		}
		messages = append(messages, out)
	}
	r.body["messages"] = messages
	if given(in.Tools) && !bytes.Equal(in.Tools, []byte("[]")) {
		r.body["tools"] = in.Tools
	}
	if in.Logprobs {
		r.body["logprobs"] = true
		if in.TopLogprobs > 0 {
			r.body["top_logprobs"] = in.TopLogprobs
		}
	}
	return r.completion("/v1/chat/completions", in)
}

// generate translates a request for an answer to a prompt. Without raw and suffix, Ollama applies the model's chat
// template to the prompt. A model server does the same for a chat of one message, so generate translates the prompt to
// such a chat.
func (r *Request) generate(in *input) error {
	switch {
	case in.Prompt == "":
		return nil
	case in.Template != "":
		return errors.New("template is not supported: the function's server has its own template; without one, set raw")
	case len(in.Context) > 0:
		return errors.New("context is not supported: send the earlier messages to /api/chat")
	case !in.Raw && in.Suffix == "":
		in.Messages = []message{{Role: "user", Content: in.Prompt, Images: in.Images}}
		if in.System != "" {
			in.Messages = append([]message{{Role: "system", Content: in.System}}, in.Messages...)
		}
		in.Tools = nil
		return r.chat(in)
	case len(in.Images) > 0:
		return errors.New("images: not allowed with raw or suffix")
	case in.System != "":
		return errors.New("system: not allowed with raw or suffix")
	case in.Logprobs:
		return errors.New("logprobs: not allowed with raw or suffix")
	}
	r.body["prompt"] = in.Prompt
	if in.Suffix != "" {
		r.body["suffix"] = in.Suffix
	}
	return r.completion("/v1/completions", in)
}

// completion sets Path and adds the members that requests for chats and prompts have in common.
func (r *Request) completion(path string, in *input) error {
	r.Path = path
	if r.stream {
		r.body["stream"], r.body["stream_options"] = true, map[string]any{"include_usage": true}
	}
	if given(in.Format) {
		switch {
		case bytes.Equal(in.Format, []byte(`"json"`)):
			r.body["response_format"] = map[string]any{"type": "json_object"}
		case in.Format[0] == '{':
			r.body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "answer", "strict": true, "schema": in.Format}}
		case !bytes.Equal(in.Format, []byte(`""`)):
			return fmt.Errorf(`format: %.100s, expected "json" or a JSON schema`, in.Format)
		}
	}
	if given(in.Think) {
		switch in.Think[0] {
		case 't', 'f': // true, false
			r.body["chat_template_kwargs"] = map[string]any{"enable_thinking": in.Think}
		case '"':
			r.body["reasoning_effort"] = in.Think
		default:
			return fmt.Errorf("think: %.100s, expected true, false, or a level like %q", in.Think, "low")
		}
	}
	return r.options(in.Options)
}

// embed translates a request for the embeddings of texts.
func (r *Request) embed(in *input) error {
	if r.path == pathEmbeddings {
		in.Input, _ = json.Marshal(in.Prompt)
	}
	texts := in.Input
	switch {
	case !given(texts) || bytes.Equal(texts, []byte(`""`)) || bytes.Equal(texts, []byte(`[]`)):
		return nil
	case texts[0] == '[':
		var list []string
		if err := json.Unmarshal(texts, &list); err != nil {
			return errors.New("input: expected a text or a list of texts")
		}
		r.body["input"] = list
	case texts[0] != '"':
		return errors.New("input: expected a text or a list of texts")
	default:
		r.body["input"] = texts
	}
	if in.Dimensions > 0 {
		r.body["dimensions"] = in.Dimensions
	}
	r.body["encoding_format"] = "float"
	r.Path = "/v1/embeddings"
	return nil
}

// given reports whether a member is present and not null.
func given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// option describes how to translate an option.
type option struct {
	names []string // names in OpenAI's API, or in the servers that extend it
	texts bool     // the value is a string or a list of strings; otherwise it is a number
	least float64  // smaller numbers are omitted: in Ollama's API, they mean no limit, or a random seed
}

// options lists the options that are translated. Servers ignore those that they do not know. Ollama's other options,
// such as num_ctx, configure the start of its own server, and have no counterpart in a request of OpenAI's API.
var options = map[string]option{
	"temperature":       {names: []string{"temperature"}, least: math.Inf(-1)},
	"top_p":             {names: []string{"top_p"}, least: math.Inf(-1)},
	"seed":              {names: []string{"seed"}, least: 0},
	"stop":              {names: []string{"stop"}, texts: true},
	"num_predict":       {names: []string{"max_tokens"}, least: 0},
	"presence_penalty":  {names: []string{"presence_penalty"}, least: math.Inf(-1)},
	"frequency_penalty": {names: []string{"frequency_penalty"}, least: math.Inf(-1)},
	"top_k":             {names: []string{"top_k"}, least: math.Inf(-1)},                                // llama.cpp, vLLM, SGLang
	"min_p":             {names: []string{"min_p"}, least: math.Inf(-1)},                                // likewise
	"typical_p":         {names: []string{"typical_p"}, least: math.Inf(-1)},                            // llama.cpp
	"repeat_last_n":     {names: []string{"repeat_last_n"}, least: math.Inf(-1)},                        // llama.cpp
	"repeat_penalty":    {names: []string{"repeat_penalty", "repetition_penalty"}, least: math.Inf(-1)}, // llama.cpp; vLLM, SGLang
}

// options adds the options of a request to the body.
func (r *Request) options(values map[string]json.RawMessage) error {
	for name, raw := range values {
		o, known := options[name]
		if !known || !given(raw) {
			continue
		}
		if o.texts {
			var texts []string
			if json.Unmarshal(raw, new(string)) != nil && json.Unmarshal(raw, &texts) != nil {
				return fmt.Errorf("options.%s: %.100s, expected a list of texts", name, raw)
			}
		} else {
			var number float64
			if json.Unmarshal(raw, &number) != nil {
				return fmt.Errorf("options.%s: %.100s, expected a number", name, raw)
			}
			if number < o.least {
				continue
			}
		}
		for _, in := range o.names {
			r.body[in] = raw
		}
	}
	return nil
}

// contentOf returns the content of a message in OpenAI's form: a string or, if there are images, a list of parts.
func contentOf(text string, images []string) (any, error) {
	if len(images) == 0 {
		return text, nil
	}
	var parts []any
	if text != "" {
		parts = append(parts, map[string]any{"type": "text", "text": text})
	}
	for n, image := range images {
		kind, err := imageType(image)
		if err != nil {
			return nil, fmt.Errorf("images[%d]: %w", n, err)
		}
		parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:" + kind + ";base64," + image}})
	}
	return parts, nil
}

// imageType returns the media type of an image in base64, which it derives from the first bytes of the image.
func imageType(image string) (string, error) {
	var begin head
	if _, err := io.Copy(&begin, base64.NewDecoder(base64.StdEncoding, strings.NewReader(image))); err != nil || len(begin) == 0 {
		return "", errors.New("expected an image in base64")
	}
	kind := http.DetectContentType(begin)
	if !strings.HasPrefix(kind, "image/") {
		return "", fmt.Errorf("the data is of type %s, expected an image", kind)
	}
	return kind, nil
}

// head is a writer that stores the first 512 bytes, which are all that http.DetectContentType uses.
type head []byte

func (h *head) Write(p []byte) (int, error) {
	*h = append(*h, p[:min(len(p), 512-len(*h))]...)
	return len(p), nil
}

// pending matches the results of tools with the calls in earlier messages. In OpenAI's API, a call and its result have
// the same ID. In Ollama's API, both may lack it, so pending makes up IDs.
type pending struct {
	calls []toolCall // calls of the last message with calls that have no result yet
	count int        // number of all calls so far
}

// made returns the tool calls of a message in OpenAI's form, and makes them the pending ones.
func (p *pending) made(calls []toolCall) (out []map[string]any) {
	p.calls = nil
	for _, c := range calls {
		if c.ID == "" {
			c.ID = fmt.Sprintf("call_%d", p.count)
		}
		p.count++
		p.calls = append(p.calls, c)
		arguments := string(c.Function.Arguments)
		if !given(c.Function.Arguments) {
			arguments = "{}"
		}
		out = append(out, map[string]any{"id": c.ID, "type": "function", "function": map[string]any{"name": c.Function.Name, "arguments": arguments}})
	}
	return out
}

// answered returns the ID of the call whose result the message contains, and removes the call from the pending ones. If
// the message has no ID, this is the first pending call of its tool or, if there is none, of any tool.
func (p *pending) answered(m message) string {
	at := -1
	for i, c := range p.calls {
		switch {
		case m.ToolCallID != "" && c.ID == m.ToolCallID:
			at = i
		case m.ToolCallID == "" && at < 0 && (m.ToolName == "" || c.Function.Name == m.ToolName):
			at = i
		}
	}
	if at < 0 && m.ToolCallID == "" && len(p.calls) > 0 {
		at = 0
	}
	if at < 0 {
		return m.ToolCallID
	}
	id := p.calls[at].ID
	p.calls = append(p.calls[:at:at], p.calls[at+1:]...)
	return id
}
