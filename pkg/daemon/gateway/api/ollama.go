package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/ollama"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

const (
	// ollamaVersion is the version of Ollama whose API the gateway serves. Clients compare it with the
	// version that they need.
	ollamaVersion = "0.17.4"

	// latest is the tag that clients of Ollama append to a name without one.
	latest = ":latest"

	// capabilities is the annotation of a function that lists what its model can do.
	capabilities = "capabilities"
)

// heartbeat reports whether a request is the one by which clients of Ollama check that it runs.
func heartbeat(r *http.Request) bool { return r.Method == http.MethodHead && r.URL.Path == "/" }

// ollamaAPI serves Ollama's API: pkg/daemon/gateway/ollama translates its requests to those of OpenAI's,
// which become calls of functions like the requests at /v1/.
type ollamaAPI struct{ *API }

// serve answers a request for a path that begins with /api/.
func (o ollamaAPI) serve(w http.ResponseWriter, r *http.Request, path string) {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/api/"), "/")
	own, isOwn := map[string]func() any{
		"version": func() any { return map[string]string{"version": ollamaVersion, "gfaas": o.cfg.Version} },
		"tags":    func() any { return map[string]any{"models": o.models()} },
		"ps":      func() any { return map[string]any{"models": o.running(time.Now())} },
	}[strings.TrimPrefix(path, "/api/")]
	allow := http.MethodPost
	if isOwn {
		allow = "GET, HEAD"
	}
	switch {
	case isOwn && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		o.answer(w, r, own())
	case slices.Contains([]string{"pull", "push", "create", "copy", "delete", "blobs"}, name):
		o.refuse(w, r, &refusal.Error{Code: refusal.NotImplemented, Message: "this gateway does not store models: " + path, Hint: "apply a function that serves the model: gfaas apply -f function.yaml"})
	case !isOwn && path != "/api/show" && !ollama.Answers(path):
		o.refuse(w, r, noPath(path))
	case isOwn || r.Method != http.MethodPost:
		o.refuse(w, r, notAllowed(r.Method, allow))
	case path == "/api/show":
		o.show(w, r)
	default:
		o.serveModel(w, r, path)
	}
}

// answer writes an answer of the gateway itself.
func (o ollamaAPI) answer(w http.ResponseWriter, r *http.Request, value any) {
	o.cfg.Proxy.NewCall(r, nil, "").Label(w.Header(), queue.Reason{Code: refusal.Models})
	writeJSON(w, http.StatusOK, value)
}

// named returns the function that a client names, or nil.
func (o ollamaAPI) named(ctx context.Context, name string) *dispatch.Function {
	if short, tagged := strings.CutSuffix(name, latest); tagged && o.cfg.Dispatcher.Model(name) == nil {
		name = short
	}
	return o.model(ctx, name)
}

// serveModel answers a request to a model.
func (o ollamaAPI) serveModel(w http.ResponseWriter, r *http.Request, path string) {
	began := time.Now()
	c := o.cfg.Proxy.NewCall(r, nil, "")
	if o.cfg.Dispatcher.Draining.IsSet() {
		c.Refuse(w, refusal.Ending())
		return
	}
	defer c.Release()
	body, fault := c.ReceiveAll(w, r)
	if fault != nil {
		c.Refuse(w, fault)
		return
	}
	request, err := ollama.Parse(path, body)
	if err != nil {
		c.Refuse(w, refusal.Bad("%v", err))
		return
	}
	f := o.named(r.Context(), request.Model)
	if f == nil {
		c.Refuse(w, refusal.UnknownFunction(request.Model))
		return
	}
	if e := f.Uncallable(); e != nil {
		c.Refuse(w, e)
		return
	}
	if request.Unloads() {
		if e := managerFault(r); e != nil {
			c.Refuse(w, e)
			return
		}
		f.StopIdle()
		o.writeOwn(w, c, request.Loaded(time.Now()))
		return
	}
	method := http.MethodPost
	if request.Path == "" { // any request that is a call loads the model
		request.Path, method, body = "/v1/models", http.MethodGet, nil
	} else if body, err = request.Body(cmp.Or(f.Calls().Served, strings.TrimSuffix(request.Model, latest))); err != nil {
		c.Refuse(w, refusal.Bad("%v", err))
		return
	}
	c.Replace(body)
	c.SetFunction(f)
	c.SetPath(request.Path)
	to := &ollamaWriter{ResponseWriter: w, call: c, request: request, began: began, loads: method == http.MethodGet}
	to.translation = request.NewAnswer(w, o.cfg.MaxBody, began, time.Now)
	c.Forward(to, inner(r, method, request.Path))
	to.end()
	if request.KeepAlive != nil && managerFault(r) == nil {
		f.KeepIdle(*request.KeepAlive)
	}
}

// writeOwn writes an answer of the gateway itself to a call.
func (o ollamaAPI) writeOwn(w http.ResponseWriter, c *proxy.Call, body []byte) {
	c.Label(w.Header(), queue.Reason{Code: refusal.Models})
	w.Header().Set("Content-Type", ollama.ContentType(false))
	_, _ = w.Write(body) // the caller may have closed its connection
}

// inner returns the request to send to an instance, in place of a request of Ollama's API. Its body is that of
// the call.
func inner(r *http.Request, method, path string) *http.Request {
	r = r.Clone(r.Context())
	r.Method, r.URL.Path, r.URL.RawPath, r.URL.RawQuery = method, path, "", ""
	r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, 0, nil
	for _, name := range []string{"Accept", "Accept-Encoding", "Content-Encoding", "Content-Length", "Content-Type", "Upgrade"} {
		r.Header.Del(name)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// ollamaWriter translates an answer to a call. Only streams are written as they arrive.
type ollamaWriter struct {
	http.ResponseWriter
	call        *proxy.Call
	request     *ollama.Request
	translation *ollama.Answer
	began       time.Time
	loads       bool // the request only loads the model
	status      int  // of the call's answer; 0 before its head
	stream      bool // the head of the answer was written
}

// Unwrap supports http.ResponseController.
func (o *ollamaWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// WriteHeader takes the head of the call's answer.
func (o *ollamaWriter) WriteHeader(status int) {
	if status < http.StatusOK {
		o.ResponseWriter.WriteHeader(status)
		return
	}
	h := o.Header()
	o.status = status
	if o.loads && status < http.StatusInternalServerError && h.Get("Gfaas-Instance") != "" {
		o.status = http.StatusOK // an instance answered, whatever it knows of the path
	}
	load := labelled(h, "Gfaas-Start-Ms")
	o.stream = o.translation.Begin(o.status, h, load, load+labelled(h, "Gfaas-Queue-Ms"))
	for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Trailer"} {
		h.Del(name)
	}
	h.Set("Content-Type", ollama.ContentType(o.stream))
	if o.stream {
		o.ResponseWriter.WriteHeader(status)
	}
}

// labelled returns the time in a header, in milliseconds.
func labelled(h http.Header, name string) time.Duration {
	ms, _ := strconv.ParseFloat(h.Get(name), 64)
	return time.Duration(ms * float64(time.Millisecond))
}

func (o *ollamaWriter) Write(p []byte) (int, error) {
	if o.status == 0 {
		o.WriteHeader(http.StatusOK)
	}
	if o.loads && o.status == http.StatusOK {
		return len(p), nil
	}
	return o.translation.Write(p)
}

// FlushError supports http.ResponseController.
func (o *ollamaWriter) FlushError() error {
	if !o.stream {
		return nil
	}
	return http.NewResponseController(o.ResponseWriter).Flush()
}

// end writes the rest of the answer.
func (o *ollamaWriter) end() {
	if o.status == 0 { // the head had no body
		o.WriteHeader(http.StatusOK)
	}
	status, body, err := http.StatusOK, []byte(nil), error(nil)
	if o.loads && o.status == http.StatusOK {
		body = o.request.Loaded(time.Now())
	} else if status, body, err = o.translation.End(); o.stream {
		return
	}
	if err != nil {
		o.call.RefuseBadAnswer(o.ResponseWriter, err.Error())
		return
	}
	o.Header().Set("Content-Length", strconv.Itoa(len(body)))
	o.ResponseWriter.WriteHeader(status)
	_, _ = o.ResponseWriter.Write(body) // the caller may have closed its connection
}

// details describes a model. The gateway does not know its values.
type details struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

// tag describes a function as a model in Ollama's lists.
type tag struct {
	Name       string    `json:"name"`
	Model      string    `json:"model"`
	ModifiedAt time.Time `json:"modified_at,omitzero"`
	Size       int64     `json:"size"`
	Digest     string    `json:"digest"`
	Details    details   `json:"details"`

	// The fields of a running model.
	ExpiresAt     time.Time `json:"expires_at,omitzero"`
	SizeVRAM      *int64    `json:"size_vram,omitempty"`
	ContextLength int64     `json:"context_length,omitempty"` // in tokens; 0 means unknown
}

// tagsOf describes a function, under its name and each alias. Clients take a name without a tag for one with the
// tag latest, so the list has it.
func tagsOf(f dispatch.Info) (tags []tag) {
	text, _ := function.Format([]function.Function{f.Definition.Versioned()}) // an empty text is as good
	sum := sha256.Sum256(text)
	for _, name := range f.Definition.Names() {
		if !strings.Contains(name, ":") {
			name += latest
		}
		tags = append(tags, tag{Name: name, Model: name, Size: int64(f.Definition.GPUMem), Digest: hex.EncodeToString(sum[:]), Details: details{Families: []string{}}})
	}
	return tags
}

// models lists the models.
func (o ollamaAPI) models() []tag {
	tags := []tag{}
	for _, f := range o.listedModels() {
		for _, t := range tagsOf(f) {
			t.ModifiedAt = f.Applied.UTC().Truncate(time.Microsecond)
			tags = append(tags, t)
		}
	}
	return tags
}

// running lists the models with ready instances: their memory on the GPU, and when the last of the instances
// stops if no call arrives.
func (o ollamaAPI) running(now time.Time) []tag {
	memory, idle := map[string]float64{}, map[string]float64{}
	for _, i := range o.cfg.Dispatcher.Status().Instances {
		if i.MemUsedMiB != nil {
			memory[i.Function] += *i.MemUsedMiB
		}
		since, known := idle[i.Function]
		switch {
		case i.IdleS == nil:
			idle[i.Function] = 0
		case !known || *i.IdleS < since:
			idle[i.Function] = *i.IdleS
		}
	}
	tags := []tag{}
	for _, f := range o.listedModels() {
		if f.Ready == 0 {
			continue
		}
		name := f.Definition.Name
		expires := now.Add(f.Spec.Idle - time.Duration(idle[name]*float64(time.Second)))
		if f.Spec.Idle <= 0 || f.Ready <= int(f.Spec.Min) {
			expires = now.AddDate(100, 0, 0) // clients show a time so far away as "forever"
		}
		for _, t := range tagsOf(f) {
			t.ExpiresAt = expires.UTC().Truncate(time.Microsecond)
			t.Size, t.ContextLength = int64(memory[name]*(1<<20)), f.Context
			t.SizeVRAM = new(t.Size)
			tags = append(tags, t)
		}
	}
	return tags
}

// show describes a model.
func (o ollamaAPI) show(w http.ResponseWriter, r *http.Request) {
	c := o.cfg.Proxy.NewCall(r, nil, "")
	defer c.Release()
	body, fault := c.ReceiveAll(w, r)
	if fault != nil {
		c.Refuse(w, fault)
		return
	}
	var in struct{ Model, Name string }
	if err := json.Unmarshal(body, &in); err != nil {
		c.Refuse(w, refusal.Bad("invalid request body: %v", err))
		return
	}
	if in.Model == "" {
		in.Model = in.Name
	}
	f := o.named(r.Context(), in.Model)
	if f == nil {
		c.Refuse(w, refusal.UnknownFunction(in.Model))
		return
	}
	it := f.Info()
	can := []string{}
	for word := range strings.SplitSeq(it.Definition.Annotations[capabilities], ",") {
		if word = strings.TrimSpace(word); word != "" {
			can = append(can, word)
		}
	}
	if len(can) == 0 {
		can = []string{"completion"}
	}
	about := map[string]any{"general.architecture": "model", "general.basename": it.Definition.Name}
	if it.Context > 0 { // clients look for it under the name of the architecture
		about["model.context_length"] = it.Context
	}
	o.answer(w, r, map[string]any{
		"modelfile": "", "parameters": "", "template": "", "details": details{Families: []string{}}, "capabilities": can,
		"model_info":  about,
		"modified_at": it.Applied.UTC().Truncate(time.Microsecond),
	})
}
