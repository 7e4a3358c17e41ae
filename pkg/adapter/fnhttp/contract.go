// Package fnhttp calls functions over HTTP. WaitReady waits until an instance is ready, and
// Client.Invoke sends a call, according to the function's contract:
//
//	contract    ready if 2xx or 3xx          invoked by
//	http        GET /healthz                 POST /
//	openfaas    GET /_/health                POST /
//	kserve-v2   GET /v2/health/ready         POST /v2/models/NAME/infer
//	openai      GET /health or /v1/models    POST /v1/chat/completions
//
// Model servers may list their model while they load it, so /health is asked first.
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
	invoke func(function string) string // path of a POST
}

func root(string) string { return "/" }

// conventions are in the order in which auto tries them. http is first because a program
// that answers every path with 200 is a plain HTTP program.
var conventions = []convention{
	{HTTP, []string{"/healthz"}, root},
	{OpenFaaS, []string{"/_/health"}, root},
	{KServeV2, []string{"/v2/health/ready"}, func(function string) string {
		return "/v2/models/" + url.PathEscape(function) + "/infer"
	}},
	{OpenAI, []string{"/health", "/v1/models"}, func(string) string { return "/v1/chat/completions" }},
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
