package ollama

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	maxLine  = 8 << 20  // longest line of a stream of events, in bytes; Ollama's client reads lines of up to 8 MB
	maxError = 64 << 10 // limit on the part of an error's body that is read, in bytes
)

// Answer translates one answer of an instance. The caller calls Begin with the head of the instance's answer, then
// Write with each part of the body, and then End.
//
// If the client has requested a stream and the instance's answer consists of events, Write writes the translated
// answer to the writer, as lines of JSON. Otherwise, End returns the translated answer or an error.
type Answer struct {
	request *Request
	to      io.Writer
	now     func() time.Time
	began   time.Time
	limit   int64 // largest body of an instance's answer that does not consist of events, in bytes

	// The instance's answer, as far as it has arrived.
	status int
	load   time.Duration // from the arrival of the call until its instance had started
	waited time.Duration // from the arrival of the call until it was sent to an instance
	events bool          // the answer consists of events
	body   []byte        // if events: the incomplete line; otherwise the body
	data   []byte        // the data of the incomplete event

	// The translated answer, as far as it is known.
	content, thinking []byte            // empty for a stream
	logprobs          []json.RawMessage // empty for a stream
	calls             []builtCall
	finish            string // why the model has ended its answer; empty if it has not
	usage             usage
	timings           timings
	first             time.Time // arrival of the first part of the text
	ended             bool      // the last event has arrived
	failed            error     // why the rest of the answer is discarded
}

// NewAnswer returns an Answer for r. began is the time at which the request arrived. A stream is written to the writer
// to. If the instance's answer has more than limit bytes and does not consist of events, End returns an error.
func (r *Request) NewAnswer(to io.Writer, limit int64, began time.Time, now func() time.Time) *Answer {
	return &Answer{request: r, to: to, limit: limit, began: began, now: now}
}

// Begin starts the translation, and reports whether the answer is written as a stream. status and h are those of the
// instance's answer. load is the time for which the call waited for the start of its instance, and waited the time
// for which it waited in total.
func (a *Answer) Begin(status int, h http.Header, load, waited time.Duration) (stream bool) {
	a.status, a.load, a.waited = status, load, waited
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	a.events = status == http.StatusOK && kind == "text/event-stream"
	if code := h.Get("Content-Encoding"); code != "" && code != "identity" {
		a.failed, a.events = fmt.Errorf("the answer has the encoding %.100q", code), false
	}
	return a.streams()
}

// Write processes the next part of the instance's answer. If it returns an error, the stream cannot be continued:
// Write has written a line with the error, and the caller need not read the rest.
func (a *Answer) Write(p []byte) (int, error) {
	switch {
	case a.failed != nil, a.ended:
	case a.events:
		if a.failed = a.lines(p); a.failed != nil && a.streams() {
			_, _ = a.to.Write(errorBody(a.failed.Error()))
			if !errors.As(a.failed, new(reported)) {
				return 0, a.failed
			}
		}
	case a.status != http.StatusOK:
		a.body = append(a.body, p[:min(len(p), maxError-len(a.body))]...)
	case int64(len(a.body)+len(p)) > a.limit:
		a.failed, a.body = fmt.Errorf("the answer is longer than %d bytes", a.limit), nil
	default:
		a.body = append(a.body, p...)
	}
	return len(p), nil
}

// reported is an error that the instance has reported as an event. The instance itself then ends its answer.
type reported string

func (r reported) Error() string { return string(r) }

// lines processes the next part of a stream of events.
func (a *Answer) lines(p []byte) error {
	for len(p) > 0 && !a.ended {
		part, rest, whole := bytes.Cut(p, []byte{'\n'})
		if len(a.body)+len(part) > maxLine {
			return fmt.Errorf("a line of the stream is longer than %d MiB", maxLine>>20)
		}
		if p = rest; !whole {
			a.body = append(a.body, part...)
			return nil
		}
		if len(a.body) > 0 {
			a.body = append(a.body, part...)
			part = a.body
		}
		a.body = a.body[:0]
		if err := a.line(bytes.TrimSuffix(part, []byte{'\r'})); err != nil {
			return err
		}
	}
	return nil
}

// line processes a complete line of a stream of events. It ignores comments and all fields except data, because the
// servers put everything into data.
func (a *Answer) line(line []byte) error {
	if len(line) == 0 {
		return a.event()
	}
	value, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return nil
	}
	if len(a.data)+len(value) > maxLine {
		return fmt.Errorf("an event of the stream is longer than %d MiB", maxLine>>20)
	}
	if len(a.data) > 0 {
		a.data = append(a.data, '\n')
	}
	a.data = append(a.data, bytes.TrimPrefix(value, []byte{' '})...)
	return nil
}

// event processes the event whose data is complete.
func (a *Answer) event() error {
	data := a.data
	a.data = a.data[:0]
	switch {
	case len(data) == 0:
		return nil
	case string(data) == "[DONE]":
		a.ended = true
		return nil
	}
	return a.chunk(data)
}

// chunk is the data of an event, or a complete answer.
type chunk struct {
	Choices []choice
	Usage   *usage
	Timings *timings // sent by llama.cpp
	Error   json.RawMessage
	Object  string          // "error" in a form of errors without Error
	Message json.RawMessage // of such an error
}

type choice struct {
	Index          int
	Delta, Message *part
	Text           string // of /v1/completions
	FinishReason   string `json:"finish_reason"`
	Logprobs       json.RawMessage
}

type part struct {
	Content   string
	Thinking  string         `json:"reasoning_content"`
	Reasoning string         // the name that some servers use for reasoning_content
	ToolCalls []toolCallPart `json:"tool_calls"`
}

// toolCallPart is a part of a tool call. The arguments are a string that contains JSON, and each event of a stream has
// a piece of this string. Some servers send a JSON object instead of the string.
type toolCallPart struct {
	Index    *int
	ID       string
	Function struct {
		Name      string
		Arguments json.RawMessage
	}
}

// builtCall is a tool call that is assembled from its parts.
type builtCall struct {
	id, name  string
	arguments []byte
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
}

// timings are the measurements of llama.cpp's server.
type timings struct {
	Prompt     float64 `json:"prompt_ms"`
	Completion float64 `json:"predicted_ms"`
}

// chunk processes the data of an event, or a complete answer.
func (a *Answer) chunk(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("the instance's answer is not JSON of the expected form: %w", err)
	}
	if given(c.Error) || c.Object == "error" {
		return reported(messageIn(data))
	}
	if c.Usage != nil {
		a.usage = *c.Usage
	}
	if c.Timings != nil {
		a.timings = *c.Timings
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue
		}
		if err := a.choice(choice); err != nil {
			return err
		}
	}
	return nil
}

// choice processes a choice. A stream gets a line with its text; otherwise the text is stored for End.
func (a *Answer) choice(c choice) error {
	text, thinking := c.Text, ""
	p := c.Delta
	if p == nil {
		p = c.Message
	}
	if p != nil {
		text, thinking = text+p.Content, p.Thinking+p.Reasoning
		if p.Thinking != "" {
			thinking = p.Thinking // some servers send both names
		}
		for i, call := range p.ToolCalls {
			if err := a.call(i, call); err != nil {
				return err
			}
		}
	}
	var logprobs struct{ Content []json.RawMessage }
	if given(c.Logprobs) {
		_ = json.Unmarshal(c.Logprobs, &logprobs) // fails for /v1/completions, whose logprobs have another form
	}
	a.finish = cmp.Or(c.FinishReason, a.finish)
	if text == "" && thinking == "" {
		return nil
	}
	if a.first.IsZero() {
		a.first = a.now()
	}
	if a.streams() {
		return a.send(line{text: text, thinking: thinking, logprobs: logprobs.Content})
	}
	if int64(len(a.content)+len(a.thinking)+len(text)+len(thinking)) > max(a.limit, maxLine) {
		return fmt.Errorf("the answer is longer than %d bytes", a.limit)
	}
	a.content, a.thinking = append(a.content, text...), append(a.thinking, thinking...)
	a.logprobs = append(a.logprobs, logprobs.Content...)
	return nil
}

// streams reports whether the answer is written as a stream.
func (a *Answer) streams() bool { return a.request.stream && a.events }

const maxCalls = 1024 // limit on the number of tool calls in one answer

// call adds a part to a tool call. position is the call's number if the part has no index: its position in the event.
func (a *Answer) call(position int, part toolCallPart) error {
	if part.Index != nil {
		position = *part.Index
	}
	if position < 0 || position >= maxCalls {
		return fmt.Errorf("the call of a tool has the index %d, expected 0 to %d", position, maxCalls-1)
	}
	for len(a.calls) <= position {
		a.calls = append(a.calls, builtCall{})
	}
	c := &a.calls[position]
	c.id, c.name = cmp.Or(part.ID, c.id), cmp.Or(part.Function.Name, c.name)
	if raw := part.Function.Arguments; given(raw) {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		if len(c.arguments)+len(text) > maxLine {
			return fmt.Errorf("the arguments of a tool are longer than %d MiB", maxLine>>20)
		}
		c.arguments = append(c.arguments, text...)
	}
	return nil
}

// toolCalls returns the tool calls in Ollama's form.
func (a *Answer) toolCalls() (calls []toolCall, err error) {
	for i, c := range a.calls {
		if c.name == "" {
			continue // the server has not used this index
		}
		arguments := bytes.TrimSpace(c.arguments)
		if len(arguments) == 0 {
			arguments = []byte("{}")
		}
		if arguments[0] != '{' || !json.Valid(arguments) {
			return nil, fmt.Errorf("the model called the tool %s with arguments that are not a JSON object: %.200s", c.name, arguments)
		}
		calls = append(calls, toolCall{ID: c.id, Function: toolFunc{Index: i, Name: c.name, Arguments: arguments}})
	}
	return calls, nil
}

// End completes the translation after the last call of Write. For a stream, it writes the last line. Otherwise, it
// returns the status and the body to send, or an error if the instance's answer cannot be translated.
func (a *Answer) End() (status int, body []byte, err error) {
	if a.streams() {
		if a.failed != nil {
			return 0, nil, nil // Write has written the error
		}
		last, err := a.last()
		if err != nil {
			_, err = a.to.Write(errorBody(err.Error()))
			return 0, nil, err
		}
		return 0, nil, a.send(last)
	}
	switch {
	case a.failed != nil:
		return 0, nil, a.failed
	case a.status != http.StatusOK:
		return a.status, errorBody(messageIn(a.body)), nil
	case strings.HasPrefix(a.request.path, pathEmbed):
		if body, err = a.embeddings(); err != nil {
			return 0, nil, err
		}
		return http.StatusOK, body, nil
	case !a.events:
		if err := a.chunk(a.body); err != nil {
			return 0, nil, err
		}
	}
	last, err := a.last()
	if err != nil {
		return 0, nil, err
	}
	body, err = a.encode(last)
	return http.StatusOK, body, err
}

// last returns the last line of a stream, or the complete answer. If the answer consists of events, last first
// processes the rest of them.
func (a *Answer) last() (line, error) {
	if a.events && !a.ended { // the last line may lack its line feed, and the last event the empty line after it
		if err := a.line(bytes.TrimSuffix(a.body, []byte{'\r'})); err != nil {
			return line{}, err
		}
		if err := a.event(); err != nil {
			return line{}, err
		}
		if a.finish == "" && !a.ended {
			return line{}, errors.New("the instance ended its stream before the end of the answer")
		}
	}
	calls, err := a.toolCalls()
	if err != nil {
		return line{}, err
	}
	if len(calls) > 0 && a.streams() {
		if err := a.send(line{calls: calls}); err != nil {
			return line{}, err
		}
		calls = nil
	}
	reason := "stop"
	if a.finish == "length" {
		reason = "length"
	}
	return line{text: string(a.content), thinking: string(a.thinking), calls: calls, logprobs: a.logprobs, reason: reason}, nil
}

// line is the content of a line of the translated answer.
type line struct {
	text, thinking string
	calls          []toolCall
	logprobs       []json.RawMessage
	reason         string // why the answer has ended; empty in all lines except the last one
}

// send writes a line of a stream.
func (a *Answer) send(l line) error {
	text, err := a.encode(l)
	if err == nil {
		_, err = a.to.Write(text)
	}
	return err
}

// output is the JSON form of a line.
type output struct {
	Model      string            `json:"model"`
	CreatedAt  time.Time         `json:"created_at"`
	Message    *outMessage       `json:"message,omitempty"`  // of /api/chat
	Response   *string           `json:"response,omitempty"` // of /api/generate
	Thinking   string            `json:"thinking,omitempty"`
	ToolCalls  []toolCall        `json:"tool_calls,omitempty"`
	Logprobs   []json.RawMessage `json:"logprobs,omitempty"`
	Done       bool              `json:"done"`
	DoneReason string            `json:"done_reason,omitempty"`
	metrics
}

type outMessage struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	Thinking  string     `json:"thinking,omitempty"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

// metrics are the durations, in nanoseconds, and the numbers of tokens of an answer.
type metrics struct {
	Total      time.Duration `json:"total_duration,omitempty"`
	Load       time.Duration `json:"load_duration,omitempty"`
	Prompts    int           `json:"prompt_eval_count,omitempty"`
	PromptEval time.Duration `json:"prompt_eval_duration,omitempty"`
	Tokens     int           `json:"eval_count,omitempty"`
	Eval       time.Duration `json:"eval_duration,omitempty"`
}

// encode returns a line in JSON, with a line feed.
func (a *Answer) encode(l line) ([]byte, error) {
	o := output{Model: a.request.Model, CreatedAt: timestamp(a.now()), Logprobs: l.logprobs, Done: l.reason != "", DoneReason: l.reason}
	if a.request.path == pathChat {
		o.Message = &outMessage{Role: "assistant", Content: l.text, Thinking: l.thinking, ToolCalls: l.calls}
	} else {
		o.Response, o.Thinking, o.ToolCalls = &l.text, l.thinking, l.calls
	}
	if o.Done {
		o.metrics = a.metrics()
	}
	text, err := json.Marshal(o)
	return append(text, '\n'), err
}

// timestamp returns a time in UTC with a precision of microseconds, because clients in Python accept at most six
// digits after the second.
func timestamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// metrics returns the measurements of an answer that has ended.
func (a *Answer) metrics() metrics {
	now := a.now()
	m := metrics{Total: now.Sub(a.began), Load: a.load, Prompts: a.usage.Prompt, Tokens: a.usage.Completion}
	sent := a.began.Add(a.waited)
	switch {
	case a.timings != timings{}:
		m.PromptEval, m.Eval = milliseconds(a.timings.Prompt), milliseconds(a.timings.Completion)
	case a.first.IsZero():
		m.PromptEval = max(now.Sub(sent), 0)
	case a.events:
		m.PromptEval, m.Eval = max(a.first.Sub(sent), 0), now.Sub(a.first)
	default: // the answer arrived in one piece, so its first token has no time of its own
		m.Eval = max(now.Sub(sent), 0)
	}
	return m
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(max(min(ms, Forever.Seconds()), 0) * float64(time.Millisecond))
}

// embeddings returns the answer to a request for embeddings.
func (a *Answer) embeddings() ([]byte, error) {
	var in struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage usage
	}
	if err := json.Unmarshal(a.body, &in); err != nil {
		return nil, fmt.Errorf("the instance's answer is not JSON of the expected form: %w", err)
	}
	slices.SortStableFunc(in.Data, func(x, y struct {
		Index     int
		Embedding json.RawMessage
	}) int {
		return cmp.Compare(x.Index, y.Index)
	})
	vectors := []json.RawMessage{}
	for _, d := range in.Data {
		if len(d.Embedding) == 0 || d.Embedding[0] != '[' {
			return nil, errors.New("the instance's answer has an embedding that is not a list of numbers")
		}
		vectors = append(vectors, d.Embedding)
	}
	if len(vectors) == 0 {
		return nil, errors.New("the instance's answer has no embeddings")
	}
	if a.request.path == pathEmbeddings {
		return encoded(struct {
			Embedding json.RawMessage `json:"embedding"`
		}{vectors[0]})
	}
	a.usage = in.Usage
	m := a.metrics()
	m.PromptEval, m.Eval, m.Tokens = 0, 0, 0
	return encoded(embedded{a.request.Model, vectors, m})
}

type embedded struct {
	Model      string            `json:"model"`
	Embeddings []json.RawMessage `json:"embeddings"`
	metrics
}

func encoded(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	return append(text, '\n'), err
}

// Loaded returns the answer to a request without input. The caller has loaded the model or, if Unloads reports true,
// unloaded it.
func (r *Request) Loaded(now time.Time) []byte {
	var out any
	switch r.path {
	case pathEmbed:
		out = embedded{Model: r.Model, Embeddings: []json.RawMessage{}}
	case pathEmbeddings:
		out = struct {
			Embedding []float64 `json:"embedding"`
		}{[]float64{}}
	default:
		reason := "load"
		if r.Unloads() {
			reason = "unload"
		}
		o := output{Model: r.Model, CreatedAt: timestamp(now), Done: true, DoneReason: reason}
		if r.path == pathChat {
			o.Message = &outMessage{Role: "assistant"}
		} else {
			o.Response = new("")
		}
		out = o
	}
	text, _ := encoded(out) // cannot fail: all values are strings, numbers and times
	return text
}

// ContentType returns the Content-Type of an answer.
func ContentType(stream bool) string {
	if stream {
		return "application/x-ndjson"
	}
	return "application/json; charset=utf-8"
}

// errorBody returns an error in Ollama's form, with a line feed.
func errorBody(message string) []byte {
	text, _ := encoded(struct { // cannot fail: the value is a string
		Error string `json:"error"`
	}{message})
	return text
}

// messageIn returns the message in the body of an error. It knows the forms that servers and gateways use; of another
// body, it returns the whole text.
func messageIn(body []byte) string {
	var in struct {
		Error   json.RawMessage
		Message string
		Detail  json.RawMessage // sent by servers that use FastAPI
	}
	if err := json.Unmarshal(body, &in); err == nil {
		var inner struct{ Message string }
		var text string
		switch {
		case json.Unmarshal(in.Error, &text) == nil && text != "":
			return text
		case json.Unmarshal(in.Error, &inner) == nil && inner.Message != "":
			return inner.Message
		case in.Message != "":
			return in.Message
		case json.Unmarshal(in.Detail, &text) == nil && text != "":
			return text
		}
	}
	if text := strings.TrimSpace(string(body)); text != "" {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	return "the instance answered with an error that has no text"
}
