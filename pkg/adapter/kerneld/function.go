package kerneld

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// function is an HTTP handler that answers a call by running a request of the kernel daemon.
type function struct {
	request []byte // as JSON
	client  *Client
}

// NewFunction returns a handler that runs a request: GET /healthz reports whether the
// daemon answers, and POST / runs the request, with its inputs replaced by those in the
// body, and returns the daemon's answer.
func NewFunction(client *Client, request []byte) http.Handler {
	f := &function{request, client}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", f.health)
	mux.HandleFunc("POST /{$}", f.call)
	return mux
}

func (f *function) health(w http.ResponseWriter, r *http.Request) {
	var stats json.RawMessage
	if err := f.client.Stats(r.Context(), &stats); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (f *function) call(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, kgraph.MaxRequest))
	request := f.request
	if err == nil && len(strings.TrimSpace(string(body))) > 0 {
		request, err = withInputs(f.request, body)
	}
	var answer []byte
	var timing string
	status := http.StatusBadRequest
	if err == nil {
		status = http.StatusServiceUnavailable // a refusal of the daemon has its own status
		answer, timing, err = f.run(r.Context(), request)
	}
	w.Header().Set("Content-Type", "application/json")
	if err == nil {
		w.Header().Set(timingHeader, timing)
		_, _ = w.Write(answer)
		return
	}
	refusal := &Error{Code: kgraph.BadRequest, Message: err.Error(), Status: status}
	if status == http.StatusServiceUnavailable {
		refusal.Code = "unavailable"
	}
	_ = errors.As(err, &refusal) // the daemon's own refusal, if there is one
	w.WriteHeader(refusal.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": refusal.Code, "message": refusal.Message, "where": refusal.Where}})
}

// timingHeader has the time of a request by phase.
const timingHeader = "Server-Timing"

// run runs a request, and returns the daemon's answer and its timingHeader.
func (f *function) run(ctx context.Context, request []byte) (answer []byte, timing string, err error) {
	from, err := f.client.Do(ctx, http.MethodPost, "/v1/run", bytes.NewReader(request), int64(len(request)))
	if err != nil {
		return nil, "", err
	}
	defer from.Body.Close()
	if answer, err = io.ReadAll(from.Body); err != nil {
		return nil, "", fmt.Errorf("kernel daemon: %w", err)
	}
	return answer, from.Header.Get(timingHeader), nil
}

// withInputs returns the request with its inputs replaced by those in the body.
func withInputs(request, body []byte) ([]byte, error) {
	var parsed struct {
		Inputs map[string][]byte `json:"inputs"`
	}
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&parsed); err != nil {
		return nil, fmt.Errorf("expected a body like {\"inputs\":{NAME:\"BASE64\"}}: %w", err)
	}
	graph, problems := kgraph.Parse(request)
	if len(problems) > 0 {
		return nil, problems[0]
	}
	for i := range graph.Buffers {
		b := &graph.Buffers[i]
		data, ok := parsed.Inputs[b.Name]
		if !ok {
			continue
		}
		delete(parsed.Inputs, b.Name)
		switch {
		case b.Kind != kgraph.Input:
			return nil, fmt.Errorf("the buffer %q is not an input", b.Name)
		case b.Size > 0 && int64(len(data)) != b.Size:
			return nil, fmt.Errorf("%d bytes for %q, expected %d", len(data), b.Name, b.Size)
		case len(data) == 0 || len(data) > kgraph.MaxInline:
			return nil, fmt.Errorf("%d bytes for %q, expected 1 to %d", len(data), b.Name, kgraph.MaxInline)
		}
		b.Key, b.Data, b.Size = "", data, int64(len(data))
	}
	for name := range parsed.Inputs {
		return nil, fmt.Errorf("there is no buffer %q", name)
	}
	return graph.Encode()
}
