package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
)

// serveOpenAI passes a call of OpenAI's API to the function that it names as its
// model, and lists those functions as models.
func (g *Gateway) serveOpenAI(w http.ResponseWriter, r *http.Request, path string) {
	c := g.newCall(r, nil, path)
	name, one := strings.CutPrefix(path, "/v1/models/")
	if !one {
		name = ""
	}
	switch {
	case (path == "/v1/models" || one) && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		g.serveModels(w, c, name)
		return
	case path == "/v1/models" || one:
		c.refuse(w, notAllowed(r.Method, "GET, HEAD"))
		return
	case r.Method == http.MethodGet && r.URL.Query().Has("model"): // the realtime API, for example
		models := r.URL.Query()["model"]
		g.serveModel(w, r, c, models[len(models)-1])
		return
	case r.Method != http.MethodPost:
		e := notAllowed(r.Method, "POST")
		e.Hint = "the body of a POST names the function as its model, and so does the query of a GET: ?model=NAME"
		c.refuse(w, e)
		return
	case g.draining.Load():
		c.refuse(w, draining())
		return
	}
	fault := c.receive(w, r)
	defer c.release()
	if fault == nil {
		name, fault = c.findModel(r)
	}
	c.from.keep(int64(cap(c.body.head)))
	if fault != nil {
		c.refuse(w, fault)
		return
	}
	g.serveModel(w, r, c, name)
}

// serveModel passes a call to the function of this name.
func (g *Gateway) serveModel(w http.ResponseWriter, r *http.Request, c *call, name string) {
	if c.target = g.target(r.Context(), name); c.target == nil {
		c.refuse(w, noFunction(name))
		return
	}
	if r.Method == http.MethodGet {
		c.serve(w, r)
		return
	}
	c.forward(w, r)
}

// findModel returns the model that the body names. What follows the head of a long body is
// received as well, into a file: the last model counts.
func (c *call) findModel(r *http.Request) (string, *Error) {
	all := io.Reader(bytes.NewReader(c.body.head))
	if !c.body.whole {
		length := int64(-1)
		if r.ContentLength > 0 {
			length = r.ContentLength - int64(len(c.body.head))
		}
		file, fault := c.g.spills.open(c.from, length)
		if fault != nil {
			return "", fault
		}
		c.body.file, c.body.whole = file, true
		all = io.MultiReader(all, io.TeeReader(c.from, file))
	}
	name, err := modelIn(all, r.Header.Get("Content-Type"))
	if err == nil {
		_, err = io.Copy(io.Discard, all)
	}
	if c.from != nil {
		if fault := c.from.wrong(); fault != nil {
			return "", fault
		}
	}
	switch {
	case c.body.file != nil && c.body.file.fault != nil:
		return "", c.body.file.fault
	case err != nil:
		return "", badRequest("the body names no model: %v", err)
	}
	return name, nil
}

// model is a function as OpenAI's API lists models.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// serveModels lists the functions of contract openai, or the one of that name.
func (g *Gateway) serveModels(w http.ResponseWriter, c *call, name string) {
	models := []model{}
	for _, known := range g.engine.ofContract("openai") {
		models = append(models, model{ID: known, Object: "model", Created: g.began.Unix(), OwnedBy: "gfaas"})
	}
	var out any = struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", models}
	if name != "" {
		i := slices.IndexFunc(models, func(m model) bool { return m.ID == name })
		if i < 0 {
			c.refuse(w, noFunction(name))
			return
		}
		out = models[i]
	}
	c.label(w.Header(), "models")
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // nobody is there to be told
}

// ofContract are the functions of a contract, by name: they say so, or an instance
// turned out to be.
func (e *engine) ofContract(contract string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for _, t := range e.functions {
		if !t.gone && (t.function.Contract == contract || t.contract == contract) {
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return names
}
