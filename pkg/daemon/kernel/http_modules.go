package kernel

import (
	"net/http"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// modulesPath precedes the name in the path of a module.
const modulesPath = "/v1/modules/"

// module handles requests for one module. Like object, it bypasses the mux.
func (a *api) module(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	client, p := a.client(r)
	if p != nil {
		return p
	}
	name := strings.TrimPrefix(r.URL.Path, modulesPath)
	if !kgraph.ValidKey(name) {
		return problem(kgraph.BadRequest, "", "invalid name %q: expected at most 255 of A-Z a-z 0-9 . _ / -, the first a letter or a digit", name)
	}
	switch r.Method {
	case http.MethodPut:
		if r.ContentLength < 1 || r.ContentLength > kgraph.MaxRequest {
			return problem(kgraph.BadRequest, "", "the header Content-Length is %d, expected 1 to %d", r.ContentLength, kgraph.MaxRequest)
		}
		p = a.receiveModule(r.Context(), client, name, a.body(w, r), r.ContentLength)
	case http.MethodDelete:
		a.mu.Lock()
		p = a.removeModule(client, name)
		a.mu.Unlock()
	default:
		return a.notFound(w, r)
	}
	if p == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return p
}

func (a *api) listModules(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	client, p := a.client(r)
	if p != nil {
		return p
	}
	a.mu.Lock()
	list := a.modulesOf(client)
	a.mu.Unlock()
	a.reply(w, http.StatusOK, struct {
		Modules []Module `json:"modules"`
	}{list})
	return nil
}
