package api

import (
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// serveOpenAI serves OpenAI's API. The model that a call names is the function to call.
// Such functions are listed as models.
func (a *API) serveOpenAI(w http.ResponseWriter, r *http.Request, path string) {
	c := a.cfg.Proxy.NewCall(r, nil, path)
	name, oneModel := strings.CutPrefix(path, "/v1/models/")
	if !oneModel {
		name = ""
	}
	switch {
	case (path == "/v1/models" || oneModel) && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		a.serveModels(w, c, name)
		return
	case path == "/v1/models" || oneModel:
		c.Refuse(w, notAllowed(r.Method, "GET, HEAD"))
		return
	case r.Method == http.MethodGet && r.URL.Query().Has("model"): // for example the realtime API
		models := r.URL.Query()["model"]
		a.serveModel(w, r, c, models[len(models)-1])
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
	if fault == nil {
		name, fault = findModel(c, r)
	}
	c.Received()
	if fault != nil {
		c.Refuse(w, fault)
		return
	}
	a.serveModel(w, r, c, name)
}

// serveModel serves a call by the function with that name.
func (a *API) serveModel(w http.ResponseWriter, r *http.Request, c *proxy.Call, name string) {
	f := a.function(r.Context(), name)
	if f == nil {
		c.Refuse(w, refusal.UnknownFunction(name))
		return
	}
	c.SetFunction(f)
	if r.Method == http.MethodGet {
		c.Serve(w, r)
		return
	}
	c.Forward(w, r)
}

// findModel returns the model that the body of a call names. It reads the whole body, because if
// the body has several members "model", the last one counts.
func findModel(c *proxy.Call, r *http.Request) (string, *refusal.Error) {
	content, fault := c.Content(r.ContentLength)
	if fault != nil {
		return "", fault
	}
	name, err := modelIn(content, r.Header.Get("Content-Type"))
	if err == nil {
		_, err = io.Copy(io.Discard, content)
	}
	if fault := c.ContentFault(); fault != nil {
		return "", fault
	}
	if err != nil {
		return "", refusal.Bad("the body names no model: %v", err)
	}
	return name, nil
}

// model describes a function as a model in OpenAI's API.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// serveModels lists the functions with the contract openai, or only the named function.
func (a *API) serveModels(w http.ResponseWriter, c *proxy.Call, name string) {
	models := []model{}
	for _, f := range a.cfg.Dispatcher.Functions() {
		if f.Definition.Contract == "openai" || f.Contract == "openai" {
			models = append(models, model{ID: f.Definition.Name, Object: "model", Created: a.began.Unix(), OwnedBy: "gfaas"})
		}
	}
	var out any = struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", models}
	if name != "" {
		i := slices.IndexFunc(models, func(m model) bool { return m.ID == name })
		if i < 0 {
			c.Refuse(w, refusal.UnknownFunction(name))
			return
		}
		out = models[i]
	}
	c.Label(w.Header(), queue.Reason{Code: refusal.Models})
	writeJSON(w, http.StatusOK, out)
}
