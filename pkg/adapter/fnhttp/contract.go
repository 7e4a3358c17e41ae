// Package fnhttp calls functions over HTTP. WaitReady waits until an instance is ready, and
// Client.Invoke sends a call, according to the function's contract:
//
//	contract    ready if                            invoked by
//	http        GET /healthz is 2xx or 3xx          POST /
//	openfaas    GET /_/health is 2xx or 3xx         POST /
//	kserve-v2   GET /v2/health/ready is 2xx or 3xx  POST /v2/models/NAME/infer
//	openai      GET /health or /v1/models is 2xx    POST /v1/chat/completions
//
// Model servers may list their model while they load it, so /health is asked first, and
// /v1/models only if the program does not know /health. function.Ready replaces the check.
//
// The contract auto selects the first contract of this list whose path answers so. A program
// that answers HTTP but knows no such path counts as ready under the contract http.
// Batched encodes batches under each contract.
//
// Client implements ports.Invoker. It keeps connections open and, before it sends anything
// on a new one, checks that the peer is the instance (checkPeer).
package fnhttp

import (
	"fmt"
	"net/url"
	"slices"
)

// Names of contracts.
const (
	auto     = "auto"
	HTTP     = "http"
	OpenFaaS = "openfaas"
	KServeV2 = "kserve-v2"
	OpenAI   = "openai"
)

// convention describes one contract.
type convention struct {
	name   string
	ready  []string                     // paths; the first that the function knows answers 2xx or 3xx when the function is ready
	strict bool                         // only 2xx means ready, and 401 and 403 are permanent
	invoke func(function string) string // path of a POST
}

func root(string) string { return "/" }

// conventions are in the order in which auto tries them. http is first because a program
// that answers every path with 200 is a plain HTTP program.
var conventions = []convention{
	{name: HTTP, ready: []string{"/healthz"}, invoke: root},
	{name: OpenFaaS, ready: []string{"/_/health"}, invoke: root},
	{name: KServeV2, ready: []string{"/v2/health/ready"}, invoke: func(function string) string {
		return "/v2/models/" + url.PathEscape(function) + "/infer"
	}},
	{name: OpenAI, ready: []string{"/health", "/v1/models"}, strict: true, invoke: func(string) string { return "/v1/chat/completions" }},
}

// find returns the conventions for a contract's name: one, or all for auto and the empty
// name.
func find(contract string) ([]convention, error) {
	if contract == "" || contract == auto {
		return conventions, nil
	}
	i := slices.IndexFunc(conventions, func(c convention) bool { return c.name == contract })
	if i < 0 {
		return nil, fmt.Errorf("unknown contract %q: expected auto, http, openfaas, kserve-v2 or openai", contract)
	}
	return conventions[i : i+1], nil
}
