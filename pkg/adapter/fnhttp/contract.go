// Package fnhttp speaks to functions over HTTP: it waits until one is ready
// and invokes it, by the conventions ("contracts") that are in use.
//
//	contract    ready when 2xx               invoked by
//	http        GET /healthz                 POST /
//	openfaas    GET /_/health                POST /
//	kserve-v2   GET /v2/health/ready         POST /v2/models/NAME/infer
//	openai      GET /health or /v1/models    POST /v1/chat/completions
//
// Batches: see Batched.
//
// auto is whichever answers first in that order. A program that answers HTTP
// but knows none of those paths is taken for ready, under the contract http.
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

// convention is what one contract asks of a function.
type convention struct {
	name   string
	ready  []string                     // any one of them answers 2xx when it is ready
	invoke func(function string) string // path of a POST
}

func root(string) string { return "/" }

// conventions in the order that auto tries them. http is first: a program
// that answers everything with 200 is an ordinary one.
var conventions = []convention{
	{HTTP, []string{"/healthz"}, root},
	{OpenFaaS, []string{"/_/health"}, root},
	{KServeV2, []string{"/v2/health/ready"}, func(function string) string {
		return "/v2/models/" + url.PathEscape(function) + "/infer"
	}},
	{OpenAI, []string{"/v1/models", "/health"}, func(string) string { return "/v1/chat/completions" }},
}

// find returns the conventions that a contract's name stands for: one, or all
// for auto and for the empty name.
func find(contract string) ([]convention, error) {
	if contract == "" || contract == auto {
		return conventions, nil
	}
	i := slices.IndexFunc(conventions, func(c convention) bool { return c.name == contract })
	if i < 0 {
		return nil, fmt.Errorf("%q is not a contract: expected auto, http, openfaas, kserve-v2 or openai", contract)
	}
	return conventions[i : i+1], nil
}
