package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/fields"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// comments sends comments of an event stream to a caller that waits for one, so that proxies on the
// way keep the connection (loading: comment). The first comment begins the answer: its status is 200,
// and whatever follows is an event. Until stop, the answer belongs to comments; ReverseProxy writes
// its header to passing.own.
type comments struct {
	call   *Call
	accept string // Accept and Content-Type of the request
	kind   string

	mu      sync.Mutex
	timer   *time.Timer
	streams *bool // the caller waits for a stream; nil means that the body was not searched yet
	stopped bool
	begun   bool // a comment was sent
}

const (
	commentEvery   = 15 * time.Second
	commentTimeout = 10 * time.Second // limit on writing a comment
	maxErrorBody   = 64 << 10         // bytes of a function's error that an event contains
)

// SetStream sets whether the caller waits for a stream of events, if that is known.
func (c *Call) SetStream(streams bool) { c.comments.streams = &streams }

// start begins to wait, if the call can get comments: its whole body is kept, because an answer
// that begins before would end the body.
func (w *comments) start(c *Call, r *http.Request) {
	if !c.function.Calls().Comments || c.probe || c.passing.old || !c.body.Whole() || r.Method == http.MethodHead || r.Header["Upgrade"] != nil {
		return
	}
	w.call, w.accept, w.kind = c, r.Header.Get("Accept"), r.Header.Get("Content-Type")
	r.Header.Del("Accept-Encoding") // a comment before an encoded answer would make it unreadable
	c.passing.own = http.Header{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = inbound.StoppedTimer(w.comment)
	w.timer.Reset(commentEvery)
}

// stop ends the comments and reports whether one was sent.
func (w *comments) stop() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	return w.begun
}

// comment sends a comment and waits for the time of the next one.
func (w *comments) comment() {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.call
	if w.stopped || !w.forStream() {
		return
	}
	out := c.passing.ResponseWriter
	if !w.begun {
		w.begun = true
		h := out.Header()
		h["X-Call-Id"], h["X-Start-Time"] = []string{c.id}, []string{strconv.FormatInt(c.arrived.UnixNano(), 10)}
		h["Content-Type"], h["Cache-Control"], h["X-Content-Type-Options"] = []string{eventStream}, []string{"no-cache"}, []string{NoSniff}
		h["X-Accel-Buffering"] = []string{"no"}
		h["Gfaas-Reason"] = []string{string(refusal.Loading)}
		out.WriteHeader(http.StatusOK)
	}
	caller := http.NewResponseController(out)
	_ = caller.SetWriteDeadline(time.Now().Add(commentTimeout)) // the caller may not be reading
	_, err := fmt.Fprintf(out, ": waiting for %s, %d s\n\n", c.function.Name(), time.Since(c.arrived)/time.Second)
	if err == nil {
		err = caller.Flush()
	}
	if err != nil {
		c.cancel(errAborted)
		return
	}
	_ = caller.SetWriteDeadline(time.Time{})
	w.timer.Reset(commentEvery)
}

// forStream reports whether the caller waits for a stream of events.
func (w *comments) forStream() bool {
	if isEvents(w.accept) {
		return true
	}
	if body := w.call.body.Reader(); w.streams == nil && body != nil {
		found, _ := fields.Find(body, w.kind) // without a model, stream is found nevertheless
		w.streams = &found.Stream
	}
	return w.streams != nil && *w.streams
}

const eventStream = "text/event-stream"

// isEvents reports whether a Content-Type, or an Accept with one type, is that of event streams.
func isEvents(contentType string) bool {
	if len(contentType) < len(eventStream) { // most answers' types, which need not be parsed
		return false
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == eventStream
}

// toEvents turns an instance's answer into the rest of an event stream that begins with comments.
// An error of the function becomes an event, and any other answer the data of one.
func (c *Call) toEvents(answer *http.Response) (*http.Response, error) {
	good := answer.StatusCode/100 == 2
	if good && isEvents(answer.Header.Get("Content-Type")) && answer.Header.Get("Content-Encoding") == "" {
		return answer, nil
	}
	from := answer.Body
	if good {
		answer.Body = &dataReader{ReadCloser: from, rest: []byte("data: ")}
	} else {
		text, err := io.ReadAll(io.LimitReader(from, maxErrorBody))
		_ = from.Close()
		var object struct{ Error json.RawMessage }
		if err != nil || json.Unmarshal(text, &object) != nil || object.Error == nil {
			words := strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "")), " ")
			e := c.badAnswer(fmt.Sprintf("it answered %d: %.1000s", answer.StatusCode, words))
			if err != nil {
				return nil, e
			}
			text = e.Body(c.form, c.id)
		}
		answer.Body = io.NopCloser(bytes.NewReader(errorEvent(c.path, text)))
	}
	answer.ContentLength, answer.Trailer = -1, nil
	answer.Header = http.Header{"Content-Type": {eventStream}} // its flushes, because the head was sent
	return answer, nil
}

// errorEvent returns an event with an error in JSON. Anthropic's clients need its name.
func errorEvent(path string, text []byte) []byte {
	var event bytes.Buffer
	if path == "/v1/messages" {
		event.WriteString("event: error\n")
	}
	event.WriteString("data: ")
	if json.Compact(&event, text) != nil {
		event.WriteString(`{"error":{}}`) // impossible: the text was parsed, or is the gateway's
	}
	event.WriteString("\n\n")
	return event.Bytes()
}

// dataReader turns a text into one event: each of its lines is a line of data.
type dataReader struct {
	io.ReadCloser
	rest []byte // of the event, before the next byte of the text
	end  error
}

func (d *dataReader) Read(p []byte) (int, error) {
	for len(d.rest) == 0 && d.end == nil {
		text := make([]byte, 4096)
		var n int
		n, d.end = d.ReadCloser.Read(text)
		d.rest = bytes.ReplaceAll(text[:n], []byte("\n"), []byte("\ndata: "))
		if d.end == io.EOF {
			d.rest = append(d.rest, "\n\n"...)
		}
	}
	n := copy(p, d.rest)
	if d.rest = d.rest[n:]; len(d.rest) > 0 {
		return n, nil
	}
	return n, d.end
}

// eventWriter writes an answer of the gateway as an event of a stream that has begun.
type eventWriter struct {
	http.ResponseWriter
	path   string
	header http.Header // has no effect
}

func (w *eventWriter) Header() http.Header { return w.header }
func (w *eventWriter) WriteHeader(int)     {}

func (w *eventWriter) Write(p []byte) (int, error) {
	if _, err := w.ResponseWriter.Write(errorEvent(w.path, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
