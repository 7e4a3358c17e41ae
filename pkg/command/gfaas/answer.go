package gfaas

import (
	"io"
	"net/http"
	"time"
	"unicode/utf8"
)

// answer is the output of invoke -o json.
type answer struct {
	Status     int         `json:"status"` // HTTP status
	Instance   string      `json:"instance"`
	Start      string      `json:"start,omitempty"` // kind of start; only from the gateway
	DurationMS float64     `json:"duration_ms"`     // until the whole answer had arrived
	Header     http.Header `json:"header"`
	Body       *string     `json:"body,omitempty"` // nil if it is not UTF-8
	BodyBase64 []byte      `json:"body_base64,omitempty"`
}

// queuedCall is the output of invoke --async -o json.
type queuedCall struct {
	CallID string `json:"call_id"`
}

// printJSON reads the body of an answer and prints it as an object. It returns the error of body if that fails.
func (t *tool) printJSON(response *http.Response, body io.Reader, instanceID string, started time.Time) error {
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	a := answer{
		Status: response.StatusCode, Instance: instanceID, Start: response.Header.Get("Gfaas-Start"),
		DurationMS: float64(time.Since(started).Microseconds()) / 1e3, Header: response.Header,
	}
	if utf8.Valid(data) {
		text := string(data)
		a.Body = &text
	} else {
		a.BodyBase64 = data
	}
	return t.env.Emit(func(w io.Writer) error { return t.env.Encode(w, a) })
}
