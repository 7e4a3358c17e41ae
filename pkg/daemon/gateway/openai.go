package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
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
	case r.Method != http.MethodPost:
		c.refuse(w, notAllowed(r.Method, "POST"))
		return
	case g.draining.Load():
		c.refuse(w, draining())
		return
	}
	if g.nameless.Add(1) > mostBodies {
		g.nameless.Add(-1)
		c.refuse(w, tooManyBodies("that say which function they are for"))
		return
	}
	fault := c.receive(w, r)
	g.nameless.Add(-1)
	if fault == nil {
		name, fault = modelIn(c.body, r.Header.Get("Content-Type"))
	}
	if fault == nil {
		if c.target = g.target(r.Context(), name); c.target == nil {
			fault = noFunction(name)
		}
	}
	if fault != nil {
		c.refuse(w, fault)
		return
	}
	c.forward(w, r)
}

// maxModel is how long a model's name may be.
const maxModel = 256

// modelIn is the model that the head of a body names: in an object's key model, or
// a form's field of that name.
func modelIn(b body, contentType string) (string, *Error) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	var name string
	if err == nil && kind == "multipart/form-data" {
		name, err = modelInForm(b.head, parameters["boundary"])
	} else {
		name, err = modelInObject(b.head)
	}
	switch {
	case err == nil:
		return name, nil
	case !b.whole:
		return "", badRequest("the body names no model within its first %d bytes", len(b.head))
	}
	return "", badRequest("the body names no model: %v", err)
}

func modelInObject(text []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	first, err := d.Token()
	if err != nil || first != json.Delim('{') {
		return "", errors.Join(errors.New(`expected an object like {"model": "NAME"}`), err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", err
		}
		if key == "model" {
			value, err := d.Token()
			name, ok := value.(string)
			if err != nil || !ok || len(name) > maxModel {
				return "", fmt.Errorf(`"model" is no name`)
			}
			return name, nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return "", err
		}
	}
	return "", errors.New(`there is no "model"`)
}

func modelInForm(text []byte, boundary string) (string, error) {
	for form := multipart.NewReader(bytes.NewReader(text), boundary); ; {
		part, err := form.NextPart()
		if err != nil {
			return "", errors.Join(errors.New(`there is no field "model"`), err)
		}
		if part.FormName() == "model" {
			name, err := io.ReadAll(io.LimitReader(part, maxModel))
			return string(name), err
		}
	}
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
