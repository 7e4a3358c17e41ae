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

// ClientHeader names the client, on the daemon's own socket.
const ClientHeader = "Gfaas-Client"

// defaultClient is who speaks without that header.
const defaultClient = "default"

// api answers over HTTP.
type api struct {
	d    *Daemon
	only string // the client whose socket this is; empty is the daemon's own
}

// handler answers on the daemon's own socket, or on that of a client.
func (d *Daemon) handler(client string) http.Handler {
	a := &api{d, client}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/run", a.run)
	mux.HandleFunc("GET /v1/objects", a.list)
	mux.HandleFunc("GET /v1/stats", a.stats)
	if client == "" {
		mux.HandleFunc("PUT /v1/clients/{name}", a.putClient)
	}
	mux.HandleFunc("/", a.nothing)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // what is not read of it, if it is short, the server reads before an answer
			x := newExchange(w, r)
			_ = x.at.SetReadDeadline(time.Now().Add(d.cfg.Stall))
			defer x.linger(2*d.cfg.Stall, d.cfg.HostMem+1<<30)
			w, r = x, r.WithContext(r.Context())
			r.Body = x // not the server's own, which it closes with what is unread of it
		}
		if strings.HasPrefix(r.URL.Path, objectsPath) {
			a.object(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (a *api) nothing(w http.ResponseWriter, r *http.Request) {
	a.refuse(w, problem(kgraph.NotFound, "", "there is no %s %s", r.Method, r.URL.Path))
}

// objectsPath is what the key of an object follows.
const objectsPath = "/v1/objects/"

// object answers for one object. A key may have // and .. in it: a mux would clean
// the path.
func (a *api) object(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		a.put(w, r)
	case http.MethodGet, http.MethodHead:
		a.get(w, r)
	case http.MethodDelete:
		a.delete(w, r)
	default:
		a.nothing(w, r)
	}
}

// refuse answers no.
func (a *api) refuse(w http.ResponseWriter, p *Problem) {
	type text struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Where   string `json:"where"`
	}
	a.reply(w, p.Status, struct {
		Error text `json:"error"`
	}{text{p.Code, p.Message, p.Where}})
}

func (a *api) reply(w http.ResponseWriter, status int, v any) {
	text := a.encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	a.d.deliver(w, slices.Chunk(text, part))
}

func (a *api) encode(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		a.d.log.Error("an answer cannot be written", "err", err)
	}
	return text.Bytes()
}

// answer sends what a request came to. Its outputs' bytes go from where they are on
// the host: a text of all of them would be memory that nothing counts.
func (a *api) answer(w http.ResponseWriter, answer *Answer) {
	var from []*object
	hole := []byte{0, 0, 0}
	for _, name := range slices.Sorted(maps.Keys(answer.Outputs)) { // as they are encoded
		if out := answer.Outputs[name]; out.from != nil {
			from = append(from, out.from)
			defer a.d.unread(out.from)
			out.Data = hole
			answer.Outputs[name] = out
		}
	}
	text := bytes.ReplaceAll(a.encode(answer), []byte(`"data":"AAAA"`), []byte("\"data\":\"\x00\"")) // quotes in names have a backslash before them
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
	a.d.deliver(w, func(yield func([]byte) bool) {
		var buf []byte
		for i, text := range texts {
			if !yield(text) || i == len(from) {
				return
			}
			for data := range slices.Chunk(from[i].host.bytes(), part/4*3) { // of threes, so that they join
				if buf = base64.StdEncoding.AppendEncode(buf[:0], data); !yield(buf) {
					return
				}
			}
		}
	})
}

// part is what a body is sent in at most, in bytes.
const part = 1 << 20

// deliver writes a body as long as it is taken: who stalls is given up.
func (d *Daemon) deliver(w http.ResponseWriter, parts iter.Seq[[]byte]) {
	at := http.NewResponseController(w)
	defer func() { _ = at.SetWriteDeadline(time.Time{}) }()
	for data := range parts {
		// Before the first the server may have to wait for the rest of a body.
		_ = at.SetWriteDeadline(time.Now().Add(2 * d.cfg.Stall))
		if _, err := w.Write(data); err != nil {
			return
		}
	}
	_ = at.Flush() // before the deadline is lifted
}

// unread ends a reading of an object's bytes on the host.
func (d *Daemon) unread(o *object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o.readers--
	d.release(o)
}

// client is who speaks.
func (a *api) client(r *http.Request) (string, *Problem) {
	name := r.Header.Get(ClientHeader)
	switch {
	case a.only != "" && name != "" && name != a.only:
		return "", problem(kgraph.BadRequest, "", "this socket is the client %s's, not %q's", a.only, name)
	case a.only != "":
		return a.only, nil
	case name == "":
		return defaultClient, nil
	case !ValidClient(name):
		return "", problem(kgraph.BadRequest, "", "%q is no client: expected at most 63 of A-Z a-z 0-9 . _ -, the first a letter or a digit", name)
	}
	return name, nil
}

// steady reads a body as long as it comes: a caller that stalls is given up, and so
// is one that takes twice as long for a MiB. The room for an object is kept from
// others meanwhile.
type steady struct {
	body io.Reader
	at   *http.ResponseController
	most time.Duration // for which nothing may come
	next time.Time     // when the deadline is to be moved
	part int           // bytes that have come of a MiB
	last time.Time     // by when the rest of it has to
}

func (s *steady) Read(p []byte) (int, error) {
	if now := time.Now(); now.After(s.next) {
		s.next = now.Add(s.most / 4)
		until := now.Add(s.most)
		if s.last.Before(until) {
			until = s.last
		}
		_ = s.at.SetReadDeadline(until)
	}
	n, err := s.body.Read(p)
	if s.part += n; s.part >= 1<<20 {
		s.part, s.last, s.next = 0, time.Now().Add(2*s.most), time.Time{}
	}
	return n, err
}

// body is a request's body, whose first deadline the handler has set. Once it was
// read to its end it is rested. Before an answer the server reads what is left of a
// body, if that is short: of a caller that was given up no more is waited for.
func (d *Daemon) body(w http.ResponseWriter, r *http.Request) *steady {
	now := time.Now()
	return &steady{body: r.Body, at: http.NewResponseController(w), most: d.cfg.Stall, next: now.Add(d.cfg.Stall / 4), last: now.Add(2 * d.cfg.Stall)}
}

// rest lifts the deadline: what follows may take long.
func (s *steady) rest() { _ = s.at.SetReadDeadline(time.Time{}) }

func (s *steady) problem(err error) *Problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if !time.Now().Before(s.last) {
			return problem(CodeTimeout, "", "less than 1 MiB came in %v", 2*s.most)
		}
		return problem(CodeTimeout, "", "nothing came for %v", s.most)
	}
	return problem(kgraph.BadRequest, "", "the request ends in the middle: %v", err)
}

func (a *api) run(w http.ResponseWriter, r *http.Request) {
	client, p := a.client(r)
	if p == nil && r.ContentLength > kgraph.MaxRequest {
		p = problem(kgraph.TooLarge, "", "%d bytes, expected at most %d", r.ContentLength, kgraph.MaxRequest)
	}
	if p != nil {
		a.refuse(w, p)
		return
	}
	h := a.d.held.begin(client)
	defer h.leave() // what its answer names is the request's
	q, p := a.d.enter(r.Context(), h, a.d.body(w, r), r.ContentLength)
	if p != nil {
		a.refuse(w, p)
		return
	}
	answer, p := a.d.await(r.Context(), q)
	if p != nil {
		a.refuse(w, p)
		return
	}
	a.answer(w, answer)
}

func (a *api) key(r *http.Request) (string, *Problem) {
	key := strings.TrimPrefix(r.URL.Path, objectsPath)
	if !kgraph.ValidKey(key) {
		return "", problem(kgraph.BadRequest, "", "%q is no key: expected at most 255 of A-Z a-z 0-9 . _ / -, the first a letter or a digit", key)
	}
	return key, nil
}

// put stores an object: its bytes go straight to where they will be.
func (a *api) put(w http.ResponseWriter, r *http.Request) {
	name, p := a.client(r)
	key, wrong := a.key(r)
	switch {
	case p != nil:
	case wrong != nil:
		p = wrong
	case r.ContentLength < 0:
		p = problem(kgraph.BadRequest, "", "Content-Length is missing")
	case r.ContentLength == 0:
		p = problem(kgraph.BadRequest, "", "an object of 0 bytes, expected at least one")
	default:
		p = a.d.put(name, key, r.ContentLength, a.d.body(w, r))
	}
	if p != nil {
		a.refuse(w, p)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// put stores an object.
func (d *Daemon) put(name, key string, size int64, from *steady) *Problem {
	d.mu.Lock()
	c, to, places, p := d.admit(name, key, size)
	d.mu.Unlock()
	if p != nil {
		return p
	}
	_, err := io.ReadFull(from, to.bytes())
	if err == nil {
		from.rest()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.unreserve(c, places)
	if err != nil {
		d.charge(c, -size)
		to.give()
		return from.problem(err)
	}
	d.store(&object{owner: c, key: key, size: size, host: to})
	return nil
}

// admit finds room for an object, and so many places as it needs: none where it
// replaces one. Locked.
func (d *Daemon) admit(name, key string, size int64) (c *client, to *region, places int, p *Problem) {
	if p := d.room(size); p != nil {
		return nil, nil, 0, p
	}
	if c, p = d.client(name); p != nil {
		return nil, nil, 0, p
	}
	if c.objects[key] == nil {
		places = 1
	}
	if p := d.reserve(c, places); p != nil {
		return nil, nil, 0, p
	}
	to, err := c.dom.take(size)
	if err != nil {
		d.unreserve(c, places)
		return nil, nil, 0, problem(kgraph.TooLarge, "", "%v", err)
	}
	d.charge(c, size)
	return c, to, places, nil
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	name, p := a.client(r)
	if p == nil {
		var key string
		if key, p = a.key(r); p == nil {
			p = a.d.get(w, name, key, r.Method == http.MethodHead)
		}
	}
	if p != nil {
		a.refuse(w, p)
	}
}

// get sends an object. What was begun is sent to its end, whatever takes the
// object's place meanwhile.
func (d *Daemon) get(w http.ResponseWriter, name, key string, head bool) *Problem {
	for range attempts {
		var o *object
		d.mu.Lock()
		if c := d.clients[name]; c != nil {
			o = c.objects[key]
		}
		switch {
		case o == nil:
			d.mu.Unlock()
			return problem(kgraph.NotFound, "", "there is no object %q", key)
		case head:
			w.Header().Set("Content-Length", strconv.FormatInt(o.size, 10))
			d.mu.Unlock()
			return nil
		case o.host != nil:
			o.readers++
			d.mu.Unlock()
			d.sendObject(w, o)
			return nil
		}
		d.mu.Unlock()
		if err := d.save(o); err != nil {
			return problem(CodeInternal, "", "%v", err)
		}
	}
	return problem(CodeInternal, "", "the object %q cannot be brought to the host", key)
}

func (d *Daemon) sendObject(w http.ResponseWriter, o *object) {
	defer d.unread(o)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(o.size, 10))
	d.deliver(w, slices.Chunk(o.host.bytes(), part))
}

func (a *api) delete(w http.ResponseWriter, r *http.Request) {
	name, p := a.client(r)
	key, wrong := a.key(r)
	switch {
	case p != nil:
	case wrong != nil:
		p = wrong
	default:
		a.d.mu.Lock()
		if c := a.d.clients[name]; c == nil || c.objects[key] == nil {
			p = problem(kgraph.NotFound, "", "there is no object %q", key)
		} else {
			a.d.drop(c.objects[key])
		}
		a.d.mu.Unlock()
	}
	if p != nil {
		a.refuse(w, p)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Object is how one is listed.
type Object struct {
	Key      string `json:"key"`
	Size     int64  `json:"size"`
	Host     bool   `json:"host"`
	GPUs     []int  `json:"gpus"`
	Volatile bool   `json:"volatile,omitempty"`
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	name, p := a.client(r)
	if p != nil {
		a.refuse(w, p)
		return
	}
	h := a.d.held.begin(name)
	defer h.leave()
	all, p := a.d.allOf(name, h)
	if p != nil {
		a.refuse(w, p)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	a.d.deliver(w, a.listed(all))
}

// allOf are a client's objects, by key. What is kept of those that go before they are
// listed is counted with its requests.
func (d *Daemon) allOf(name string, h *hold) ([]*object, *Problem) {
	const heldObject = 256
	var all []*object
	d.mu.Lock()
	if c := d.clients[name]; c != nil {
		if p := h.want(int64(len(c.objects)) * heldObject); p != nil {
			d.mu.Unlock()
			return nil, d.noRoom(h, p)
		}
		all = slices.AppendSeq(make([]*object, 0, len(c.objects)), maps.Values(c.objects))
	}
	d.mu.Unlock()
	slices.SortFunc(all, func(a, b *object) int { return strings.Compare(a.key, b.key) })
	return all, nil
}

// listed is a list of objects in parts: all of it would be memory that nothing counts.
func (a *api) listed(all []*object) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		const some = 1024
		text := []byte(`{"objects":[`)
		first := true
		for objects := range slices.Chunk(all, some) {
			for _, o := range a.d.describe(objects) {
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

// describe says how objects are, but for those that have gone meanwhile.
func (d *Daemon) describe(objects []*object) (out []Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range objects {
		if o.gone {
			continue
		}
		listed := Object{Key: o.key, Size: o.size, Host: o.host != nil, GPUs: []int{}, Volatile: o.volatile}
		for _, c := range o.copies {
			listed.GPUs = append(listed.GPUs, int(c.at.dev.number))
		}
		slices.Sort(listed.GPUs)
		out = append(out, listed)
	}
	return out
}

func (a *api) stats(w http.ResponseWriter, _ *http.Request) {
	a.d.mu.Lock()
	s := a.d.status(a.only)
	a.d.mu.Unlock()
	a.reply(w, http.StatusOK, s)
}

func (a *api) putClient(w http.ResponseWriter, r *http.Request) {
	var want struct {
		Weight float64 `json:"weight"`
	}
	b := a.d.body(w, r)
	_, err := jsonfile.Read(http.MaxBytesReader(w, io.NopCloser(b), 4096), "body", &want)
	if err == nil {
		b.rest()
	}
	name := r.PathValue("name")
	var p *Problem
	switch {
	case !ValidClient(name):
		p = problem(kgraph.BadRequest, "", "%q is no client", name)
	case errors.Is(err, os.ErrDeadlineExceeded):
		p = b.problem(err)
	case err != nil:
		p = problem(kgraph.BadRequest, "", "expected {\"weight\":2}: %v", err)
	case !ValidWeight(want.Weight):
		p = problem(kgraph.BadRequest, "/weight", "%v, expected more than 0 and at most %v", want.Weight, maxWeight)
	default:
		a.d.mu.Lock()
		p = a.d.keep(name, want.Weight)
		a.d.mu.Unlock()
	}
	if p != nil {
		a.refuse(w, p)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

const maxWeight = 1e6

// ValidWeight says whether a client may have that weight.
func ValidWeight(weight float64) bool {
	return weight >= 1/maxWeight && weight <= maxWeight && !math.IsNaN(weight)
}
