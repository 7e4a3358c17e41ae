package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/fields"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// modelPaths lists paths outside /v1/ of model servers (llama.cpp, vLLM) whose calls name a model
// as those below /v1/ do.
var modelPaths = []string{
	"/apply-template", "/chat/completions", "/classify", "/completion", "/completions", "/detokenize", "/embedding", "/embeddings", "/infill",
	"/pooling", "/props", "/rerank", "/reranking", "/score", "/tokenize", "/v2/rerank",
}

// callsModel reports whether a request is one of OpenAI's API or of a model server. Any GET that
// names a model in its query is.
func callsModel(r *http.Request, path string) bool {
	return strings.HasPrefix(path, "/v1/") || path == "/models" || slices.Contains(modelPaths, path) ||
		r.Method == http.MethodGet && !managed(r.URL.Path) && r.URL.Query().Has("model")
}

// serveOpenAI serves OpenAI's API and the paths of model servers. The model that a call names is
// the function to call, by its name or an alias. Such functions are listed as models.
func (a *API) serveOpenAI(w http.ResponseWriter, r *http.Request, path string) {
	c := a.cfg.Proxy.NewCall(r, nil, path)
	id, oneModel := strings.CutPrefix(path, "/v1/models/")
	list := path == "/v1/models" || path == "/models" || oneModel && id == ""
	switch {
	case (list || oneModel) && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		if list {
			a.serveModels(w, c)
		} else {
			a.serveModelEntry(w, c, id)
		}
		return
	case list || oneModel:
		c.Refuse(w, notAllowed(r.Method, "GET, HEAD"))
		return
	case r.Method == http.MethodGet && r.URL.Query().Has("model"): // for example the realtime API
		models := r.URL.Query()["model"]
		a.serveQuery(w, r, c, models[len(models)-1])
		return
	case r.Method != http.MethodPost:
		e := notAllowed(r.Method, "POST")
		e.Hint = "name the function as the model in the body of a POST, or in the query of a GET: ?model=NAME"
		c.Refuse(w, e)
		return
	case a.cfg.Dispatcher.Draining.IsSet():
		c.Refuse(w, refusal.Ending())
		return
	}
	fault := c.Receive(w, r)
	defer c.Release()
	var found fields.Found
	if fault == nil {
		found, fault = findModel(c, r)
	}
	c.Received()
	if fault != nil {
		c.Refuse(w, fault)
		return
	}
	f := a.model(r.Context(), found.Model)
	if f == nil {
		c.Refuse(w, refusal.UnknownFunction(found.Model))
		return
	}
	c.SetFunction(f)
	c.SetStream(found.Stream)
	if served := f.Calls().Served; served != "" {
		replaceModel(c, r, &found, served)
	}
	c.Forward(w, r)
}

// serveQuery serves a GET whose query names a model.
func (a *API) serveQuery(w http.ResponseWriter, r *http.Request, c *proxy.Call, name string) {
	f := a.model(r.Context(), name)
	if f == nil {
		c.Refuse(w, refusal.UnknownFunction(name))
		return
	}
	c.SetFunction(f)
	if served := f.Calls().Served; served != "" {
		r.URL.RawQuery = fields.ReplaceInQuery(r.URL.RawQuery, served)
	}
	c.Serve(w, r)
}

// model returns the function with that name or alias, or nil, as function does.
func (a *API) model(ctx context.Context, name string) *dispatch.Function {
	return a.find(ctx, func() *dispatch.Function { return a.cfg.Dispatcher.Model(name) }, func(l ports.Listing) error {
		_, err := l.Model(name)
		return err
	})
}

// findModel returns the fields of a call's body, which name a model. It reads the whole body, because
// if the body has several members "model", the last one counts.
func findModel(c *proxy.Call, r *http.Request) (fields.Found, *refusal.Error) {
	content, fault := c.Content(r.ContentLength)
	if fault != nil {
		return fields.Found{}, fault
	}
	found, err := fields.Find(content, r.Header.Get("Content-Type"))
	if err == nil {
		_, err = io.Copy(io.Discard, content)
	}
	if fault := c.ContentFault(); fault != nil {
		return found, fault
	}
	if err != nil {
		return found, refusal.Bad("the body names no model: %v", err)
	}
	return found, nil
}

// digests lists headers with a checksum of a body.
var digests = []string{"Content-Digest", "Content-Md5", "Digest", "Repr-Digest"}

// replaceModel replaces the models in a call's body by the name that the server knows.
func replaceModel(c *proxy.Call, r *http.Request, found *fields.Found, served string) {
	text := found.Encode(served)
	edits := make([]inbound.Edit, len(found.Models))
	for i, m := range found.Models {
		edits[i] = inbound.Edit{At: m.At, Length: m.Length, Text: text}
	}
	c.Edit(edits)
	for _, name := range digests {
		r.Header.Del(name)
	}
}

// model describes a function, under its name or an alias, as a model in OpenAI's API. Its status is
// that of llama.cpp's router.
type model struct {
	ID      string      `json:"id"`
	Object  string      `json:"object"`
	Created int64       `json:"created"`
	OwnedBy string      `json:"owned_by"`
	Status  modelStatus `json:"status"`

	// The context length in tokens, under the keys that clients read; 0 means unknown.
	ContextLength int64 `json:"context_length,omitempty"`
	MaxModelLen   int64 `json:"max_model_len,omitempty"`
}

type modelStatus struct {
	Value  string `json:"value"`            // unloaded, loading, loaded or sleeping
	Failed bool   `json:"failed,omitempty"` // the last start failed
}

// isModel reports whether a function is a model of OpenAI's API.
func isModel(f *dispatch.Info) bool {
	return f.Definition.Contract == "openai" || f.Contract == "openai" || len(f.Definition.Aliases) > 0
}

// listedModels returns the functions that are models, except those with listed: false.
func (a *API) listedModels() []dispatch.Info {
	return slices.DeleteFunc(a.cfg.Dispatcher.Functions(), func(f dispatch.Info) bool {
		return !isModel(&f) || bool(f.Definition.Unlisted)
	})
}

// modelsOf returns the entries of a function: one for its name and one for each alias.
func modelsOf(f *dispatch.Info) (models []model) {
	status := modelStatus{Value: "unloaded", Failed: f.Ready == 0 && f.FailedStarts > 0}
	switch {
	case f.Loaded > 0:
		status.Value = "loaded"
	case f.Ready > 0:
		status.Value = "sleeping"
	case f.Instances > 0:
		status.Value = "loading"
	}
	for _, name := range f.Definition.Names() {
		models = append(models, model{ID: name, Object: "model", Created: f.Applied.Unix(), OwnedBy: "gfaas", Status: status,
			ContextLength: f.Context, MaxModelLen: f.Context})
	}
	return models
}

// serveModels lists the models.
func (a *API) serveModels(w http.ResponseWriter, c *proxy.Call) {
	models := []model{}
	for _, f := range a.listedModels() {
		models = append(models, modelsOf(&f)...)
	}
	writeModels(w, c, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", models})
}

// serveModelEntry answers with one model, listed or not. The path may contain its slashes encoded
// or as they are.
func (a *API) serveModelEntry(w http.ResponseWriter, c *proxy.Call, escaped string) {
	id, err := url.PathUnescape(escaped)
	if err == nil {
		if f := a.cfg.Dispatcher.Model(id); f != nil {
			info := f.Info()
			if isModel(&info) {
				m := modelsOf(&info)[0]
				m.ID = id
				writeModels(w, c, m)
				return
			}
		}
	}
	c.Refuse(w, refusal.UnknownFunction(id))
}

func writeModels(w http.ResponseWriter, c *proxy.Call, value any) {
	c.Label(w.Header(), queue.Reason{Code: refusal.Models})
	writeJSON(w, http.StatusOK, value)
}
