package kernel

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/jsonfile"
	"github.com/gfaas/gfaas/pkg/kgraph"
)

// ClientHeader is the HTTP header that names the client on the daemon's own socket.
const ClientHeader = "Gfaas-Client"

// defaultClient is the client of requests without ClientHeader.
const defaultClient = "default"

// api implements the HTTP interface of one socket.
type api struct {
	*scheduler
	only string // the client to which the socket belongs; empty: the daemon's own socket
}

// handler returns the HTTP interface for a client's socket, or for the daemon's own if client
// is empty.
func (q *scheduler) handler(client string) http.Handler {
	a := &api{q, client}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/run", a.endpoint(a.run))
	mux.HandleFunc("POST /v1/runs", a.endpoint(a.submitRun))
	mux.HandleFunc("GET /v1/runs", a.endpoint(a.listRuns))
	mux.HandleFunc("GET /v1/runs/{id}", a.endpoint(a.getRun))
	mux.HandleFunc("DELETE /v1/runs/{id}", a.endpoint(a.deleteRunRequest))
	mux.HandleFunc("GET /v1/objects", a.endpoint(a.listObjects))
	mux.HandleFunc("GET /v1/modules", a.endpoint(a.listModules))
	mux.HandleFunc("GET /v1/stats", a.endpoint(a.stats))
	if client == "" {
		mux.HandleFunc("PUT /v1/clients/{name}", a.endpoint(a.putClient))
	}
	mux.HandleFunc("/", a.endpoint(a.notFound))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // before it answers, net/http reads the rest of a body that is short
			x := newExchange(w, r)
			_ = x.control.SetReadDeadline(time.Now().Add(a.cfg.Stall))
			defer x.linger(2*a.cfg.Stall, a.cfg.HostMem+1<<30)
			w, r = x, r.WithContext(r.Context())
			r.Body = x // instead of net/http's body, whose Close reads the unread rest
		}
		if strings.HasPrefix(r.URL.Path, objectsPath) {
			a.endpoint(a.object)(w, r)
			return
		}
		if strings.HasPrefix(r.URL.Path, modulesPath) {
			a.endpoint(a.module)(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// endpoint returns a handler that answers with the problem that handle returns. If handle returns nil,
// it has answered.
func (a *api) endpoint(handle func(http.ResponseWriter, *http.Request) *kgraph.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p := handle(w, r)
		if p == nil {
			return
		}
		a.reply(w, statuses[p.Code], struct {
			Error Refusal `json:"error"`
		}{Refusal{p.Code, p.Message, p.Where}})
	}
}

// Refusal is the JSON form of a problem.
type Refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Where   string `json:"where"`
}

func (a *api) notFound(_ http.ResponseWriter, r *http.Request) *kgraph.Problem {
	return problem(kgraph.NotFound, "", "unknown method and path: %s %s", r.Method, r.URL.Path)
}

func (a *api) reply(w http.ResponseWriter, status int, v any) {
	text := a.encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	a.deliver(w, slices.Chunk(text, chunkSize))
}

func (a *api) encode(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		a.log.Error("cannot encode an answer", "err", err)
	}
	return text.Bytes()
}

// answer sends the result of a request.
func (a *api) answer(w http.ResponseWriter, answer *Answer) {
	w.Header().Set("Server-Timing", answer.serverTiming())
	a.sendOutputs(w, answer, answer.Outputs)
}

// sendOutputs sends a value that contains outputs, and releases their bytes. It encodes the bytes piece
// by piece from host memory, because no budget covers a text with all of them.
func (a *api) sendOutputs(w http.ResponseWriter, v any, outputs map[string]Output) {
	var from []*object
	hole := []byte{0, 0, 0}
	for _, name := range slices.Sorted(maps.Keys(outputs)) { // in the order of the JSON encoding
		if output := outputs[name]; output.from != nil {
			from = append(from, output.from)
			defer a.unread(output.from)
			output.Data = hole
			outputs[name] = output
		}
	}
	text := bytes.ReplaceAll(a.encode(v), []byte(`"data":"AAAA"`), []byte("\"data\":\"\x00\"")) // names cannot match: JSON escapes their quotes
	texts := bytes.Split(text, []byte{0})
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	for _, o := range from {
		size += base64.StdEncoding.EncodedLen(int(o.size))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(size))
	a.deliver(w, func(yield func([]byte) bool) {
		var buf []byte
		for i, text := range texts {
			if !yield(text) || i == len(from) {
				return
			}
			for data := range slices.Chunk(from[i].host.bytes(), chunkSize/4*3) { // multiples of 3 bytes, so that the base64 texts join
				if buf = base64.StdEncoding.AppendEncode(buf[:0], data); !yield(buf) {
					return
				}
			}
		}
	})
}

// chunkSize is the largest piece in which a body is sent, in bytes.
const chunkSize = 1 << 20

// deliver writes a body piece by piece. It gives up if the client stalls.
func (a *api) deliver(w http.ResponseWriter, chunks iter.Seq[[]byte]) {
	at := http.NewResponseController(w)
	defer func() { _ = at.SetWriteDeadline(time.Time{}) }()
	for data := range chunks {
		// The first write may have to wait while the server reads the rest of the request.
		_ = at.SetWriteDeadline(time.Now().Add(2 * a.cfg.Stall))
		if _, err := w.Write(data); err != nil {
			return
		}
	}
	_ = at.Flush() // before the deferred call removes the deadline
}

// client returns the name of the client that sent a request.
func (a *api) client(r *http.Request) (string, *kgraph.Problem) {
	name := r.Header.Get(ClientHeader)
	switch {
	case a.only != "" && name != "" && name != a.only:
		return "", problem(kgraph.BadRequest, "", "this socket serves only the client %s, not %q", a.only, name)
	case a.only != "":
		return a.only, nil
	case name == "":
		return defaultClient, nil
	case !ValidClient(name):
		return "", problem(kgraph.BadRequest, "", "invalid client name %q: expected at most 63 of A-Z a-z 0-9 . _ -, the first a letter or a digit", name)
	}
	return name, nil
}

// body returns a reader for a request's body with deadlines; handler has set the first one. The
// caller calls clearDeadline after it has read the whole body. After an error the deadline stays, so
// that the server does not wait for the rest of the body before it answers.
func (a *api) body(w http.ResponseWriter, r *http.Request) *bodyReader {
	now := time.Now()
	return &bodyReader{body: r.Body, control: http.NewResponseController(w), stall: a.cfg.Stall, nextUpdate: now.Add(a.cfg.Stall / 4), mibDeadline: now.Add(2 * a.cfg.Stall)}
}

// receiveRequest reads and queues a request, which is asynchronous if run is not nil. The caller must call
// release when it no longer uses the request's memory.
func (a *api) receiveRequest(w http.ResponseWriter, r *http.Request, run *asyncRun) (submitted *request, release func(), p *kgraph.Problem) {
	client, p := a.client(r)
	if p != nil {
		return nil, func() {}, p
	}
	if r.ContentLength > kgraph.MaxRequest {
		return nil, func() {}, problem(kgraph.TooLarge, "", "the request has %d bytes, expected at most %d", r.ContentLength, kgraph.MaxRequest)
	}
	memory := a.requestMemory.reserve(client)
	submitted, p = a.submit(r.Context(), run, memory, a.body(w, r), r.ContentLength)
	return submitted, memory.release, p
}

func (a *api) run(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	submitted, release, p := a.receiveRequest(w, r, nil)
	defer release() // the answer refers to the request's memory
	if p != nil {
		return p
	}
	answer, p := a.await(r.Context(), submitted)
	if p == nil {
		a.answer(w, answer)
	}
	return p
}

// objectsPath precedes the key in the path of an object.
const objectsPath = "/v1/objects/"

// object handles requests for one object. It bypasses the mux, which would clean a path with
// // or .. in the key.
func (a *api) object(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	handle := map[string]func(w http.ResponseWriter, r *http.Request, client, key string) *kgraph.Problem{
		http.MethodPut: a.putObject, http.MethodGet: a.getObject, http.MethodHead: a.getObject, http.MethodDelete: a.deleteObject,
	}[r.Method]
	if handle == nil {
		return a.notFound(w, r)
	}
	client, p := a.client(r)
	if p != nil {
		return p
	}
	key := strings.TrimPrefix(r.URL.Path, objectsPath)
	if _, _, isReference := kgraph.Reference(key); !kgraph.ValidKey(key) && (!isReference || r.Method == http.MethodPut) {
		return problem(kgraph.BadRequest, "", "invalid key %q: expected at most 255 of A-Z a-z 0-9 . _ / -, the first a letter or a digit", key)
	}
	return handle(w, r, client, key)
}

func (a *api) putObject(w http.ResponseWriter, r *http.Request, client, key string) *kgraph.Problem {
	switch {
	case r.ContentLength < 0:
		return problem(kgraph.BadRequest, "", "the header Content-Length is missing")
	case r.ContentLength == 0:
		return problem(kgraph.BadRequest, "", "the object has 0 bytes, expected at least one")
	}
	p := a.receive(client, key, r.ContentLength, a.body(w, r))
	if p == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return p
}

// receive stores an object. It reads the body directly into the object's host memory.
func (a *api) receive(client, key string, size int64, body *bodyReader) *kgraph.Problem {
	a.mu.Lock()
	c, to, places, p := a.admit(client, key, size)
	a.mu.Unlock()
	if p != nil {
		return p
	}
	_, err := io.ReadFull(body, to.bytes())
	if err == nil {
		body.clearDeadline()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.unreserve(c, places)
	if err != nil {
		a.charge(c, -size)
		to.free()
		return body.problem(err)
	}
	a.add(&object{owner: c, key: key, size: size, host: to})
	return nil
}

// admit reserves memory for an object, and a place unless it replaces one. The caller holds the
// lock.
func (a *api) admit(name, key string, size int64) (c *client, to *region, places int, p *kgraph.Problem) {
	if p := a.checkHostBudget(size); p != nil {
		return nil, nil, 0, p
	}
	if c, p = a.scheduler.client(name); p != nil {
		return nil, nil, 0, p
	}
	if c.objects[key] == nil {
		places = 1
	}
	if p := a.reserve(c, places); p != nil {
		return nil, nil, 0, p
	}
	to, err := c.dom.alloc(size)
	if err != nil {
		a.unreserve(c, places)
		return nil, nil, 0, problem(kgraph.TooLarge, "", "%v", err)
	}
	a.charge(c, size)
	return c, to, places, nil
}

// find returns an object, or nil if there is none. The caller holds the lock.
func (a *api) find(client, key string) *object {
	if c := a.clients[client]; c != nil {
		return c.objects[key]
	}
	return nil
}

// notStored returns the problem that there is no object, or no result, under a key. The caller holds the lock.
func (a *api) notStored(client, key string) *kgraph.Problem {
	if _, _, isReference := kgraph.Reference(key); isReference {
		return a.clients[client].missing(key, "")
	}
	return problem(kgraph.NotFound, "", "there is no object %q", key)
}

// getObject sends an object's bytes or, for a HEAD request, its size. Once begun, it sends the same
// object to the end, even if another one replaces it.
func (a *api) getObject(w http.ResponseWriter, r *http.Request, client, key string) *kgraph.Problem {
	for range attempts {
		a.mu.Lock()
		o := a.find(client, key)
		switch {
		case o == nil:
			defer a.mu.Unlock()
			return a.notStored(client, key)
		case r.Method == http.MethodHead:
			w.Header().Set("Content-Length", strconv.FormatInt(o.size, 10))
			a.mu.Unlock()
			return nil
		case o.host != nil:
			o.readers++
			a.mu.Unlock()
			defer a.unread(o)
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Length", strconv.FormatInt(o.size, 10))
			a.deliver(w, slices.Chunk(o.host.bytes(), chunkSize))
			return nil
		}
		a.mu.Unlock()
		if err := a.save(o); err != nil {
			return problem(CodeInternal, "", "%v", err)
		}
	}
	return problem(CodeInternal, "", "cannot copy the object %q to the host", key)
}

func (a *api) deleteObject(w http.ResponseWriter, _ *http.Request, client, key string) *kgraph.Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.find(client, key)
	if o == nil {
		return a.notStored(client, key)
	}
	a.drop(o)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// Object describes a stored object in a list.
type Object struct {
	Key      string `json:"key"`
	Size     int64  `json:"size"`
	Host     bool   `json:"host"`
	GPUs     []int  `json:"gpus"`
	Volatile bool   `json:"volatile,omitempty"`
}

func (a *api) listObjects(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	client, p := a.client(r)
	if p != nil {
		return p
	}
	memory := a.requestMemory.reserve(client)
	defer memory.release()
	objects, p := a.objectsOf(client, memory)
	if p != nil {
		return p
	}
	w.Header().Set("Content-Type", "application/json")
	a.deliver(w, a.encodeList(objects))
	return nil
}

// objectsOf returns a client's objects, sorted by key. It charges the list to the request's
// reservation, because it keeps objects in memory that are dropped before they are sent.
func (a *api) objectsOf(name string, memory *reservation) ([]*object, *kgraph.Problem) {
	const entrySize = 256
	var objects []*object
	a.mu.Lock()
	if c := a.clients[name]; c != nil {
		if p := memory.resize(int64(len(c.objects)) * entrySize); p != nil {
			a.mu.Unlock()
			return nil, a.countRefusal(memory, p)
		}
		objects = make([]*object, 0, len(c.objects))
		for key, o := range c.objects {
			if kgraph.ValidKey(key) { // not a result of an asynchronous run
				objects = append(objects, o)
			}
		}
	}
	a.mu.Unlock()
	slices.SortFunc(objects, func(a, b *object) int { return strings.Compare(a.key, b.key) })
	return objects, nil
}

// encodeList encodes a list of objects piece by piece, because no budget covers the whole text.
func (a *api) encodeList(objects []*object) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		const perChunk = 1024
		text := []byte(`{"objects":[`)
		first := true
		for part := range slices.Chunk(objects, perChunk) {
			for _, o := range a.describe(part) {
				if !first {
					text = append(text, ',')
				}
				first = false
				text = append(text, bytes.TrimSuffix(a.encode(o), []byte("\n"))...)
			}
			if !yield(text) {
				return
			}
			text = text[:0]
		}
		yield(append(text, "]}\n"...))
	}
}

// describe returns descriptions of the objects that are still stored.
func (a *api) describe(objects []*object) (described []Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		if o.dropped {
			continue
		}
		listed := Object{Key: o.key, Size: o.size, Host: o.host != nil, GPUs: []int{}, Volatile: o.volatile}
		for _, c := range o.copies {
			listed.GPUs = append(listed.GPUs, int(c.worker.dev.number))
		}
		slices.Sort(listed.GPUs)
		described = append(described, listed)
	}
	return described
}

func (a *api) stats(w http.ResponseWriter, _ *http.Request) *kgraph.Problem {
	a.mu.Lock()
	s := a.status(a.only)
	a.mu.Unlock()
	a.reply(w, http.StatusOK, s)
	return nil
}

func (a *api) putClient(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	var body struct {
		Weight float64 `json:"weight"`
	}
	b := a.body(w, r)
	_, err := jsonfile.Read(http.MaxBytesReader(w, io.NopCloser(b), 4096), "body", &body)
	if err == nil {
		b.clearDeadline()
	}
	name := r.PathValue("name")
	switch {
	case !ValidClient(name):
		return problem(kgraph.BadRequest, "", "invalid client name %q", name)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return b.problem(err)
	case err != nil:
		return problem(kgraph.BadRequest, "", "expected a body like {\"weight\":2}: %v", err)
	case !ValidWeight(body.Weight):
		return problem(kgraph.BadRequest, "/weight", "%v, expected more than 0 and at most %v", body.Weight, maxWeight)
	}
	a.mu.Lock()
	p := a.setWeight(name, body.Weight)
	a.mu.Unlock()
	if p == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return p
}

const maxWeight = 1e6

// ValidWeight reports whether a client may have the given weight.
func ValidWeight(weight float64) bool {
	return weight >= 1/maxWeight && weight <= maxWeight && !math.IsNaN(weight)
}
