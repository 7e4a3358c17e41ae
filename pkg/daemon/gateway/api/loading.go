package api

import (
	"net/http"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// namedModel is the body of a request that loads or unloads a model, as in llama.cpp's router.
type namedModel struct {
	Model string `json:"model"`
}

// success is the answer to it.
type success struct {
	Success bool `json:"success"`
}

// loadModel starts an instance of a function, or moves the memory of one to the GPU, as a call does,
// and answers when it is ready.
func (a *API) loadModel(r *http.Request) (int, any, error) {
	f, err := a.decodeModel(r)
	switch {
	case err != nil:
		return 0, nil, err
	case f == nil:
		return 0, nil, refusal.Bad("model: missing, expected the name of a function")
	}
	if e := a.cfg.Proxy.Load(r.Context(), f); e != nil {
		return 0, nil, e
	}
	return http.StatusOK, success{true}, nil
}

// unloadModel stops the gateway's instances of a function, or of all functions if the request names
// none. Those that run calls stop when they have completed them.
func (a *API) unloadModel(r *http.Request) (int, any, error) {
	f, err := a.decodeModel(r)
	switch {
	case err != nil:
		return 0, nil, err
	case f == nil:
		a.cfg.Dispatcher.UnloadAll()
	default:
		if e := f.Unload(); e != nil {
			return 0, nil, e
		}
		await(r.Context(), func() bool { return f.Unloaded() })
	}
	return http.StatusOK, success{true}, nil
}

// decodeModel returns the function that the body of a request names, or nil if it names none.
func (a *API) decodeModel(r *http.Request) (*dispatch.Function, error) {
	var named namedModel
	if r.Body != nil && r.Body != http.NoBody {
		if err := decode(r, &named); err != nil {
			return nil, err
		}
	}
	if named.Model == "" {
		return nil, nil
	}
	f := a.model(r.Context(), named.Model)
	if f == nil {
		return nil, refusal.UnknownFunction(named.Model)
	}
	return f, nil
}
