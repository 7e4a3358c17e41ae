// Package agent answers a gateway's questions about a node of a swarm, over HTTP: the gateway is a container on an
// overlay network, from which it cannot reach the sockets of other nodes.
//
// The agent passes three requests to the node's token daemon, and changes nothing:
//
//	GET /v1/status   wire.Status: instances, their processes and their use of the GPUs
//	GET /v1/faults   wire.Faults: CUDA errors after which a process cannot use CUDA
//	GET /v1/devices  wire.Devices: the memory of the node's GPUs, as the drivers report it
//
// Each needs the header Authorization: Gfaas REQUEST, with a request that a trusted key has signed (grant.Verifier).
// pkg/adapter/agent is the client.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Scheme precedes a request in the header Authorization.
const Scheme = "Gfaas "

// answerTime is the time limit of the token daemon's answer.
const answerTime = 5 * time.Second

// Tokens is the node's token daemon.
type Tokens interface {
	Status(context.Context) (wire.Status, error)
	Faults(context.Context) ([]wire.InstanceFault, error)
	Devices(context.Context) ([]wire.DeviceMemory, error)
}

// Agent is the handler of an agent's requests.
type Agent struct {
	tokens Tokens
	verify *grant.Verifier

	mu   sync.Mutex
	node string // its name, which the token daemon knows; empty: not known yet
}

// New returns an agent that answers requests signed by the trusted keys.
func New(tokens Tokens, trust grant.Trust) *Agent {
	return &Agent{tokens: tokens, verify: grant.NewVerifier(trust)}
}

// ServeHTTP implements http.Handler.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ctx, cancel := context.WithTimeout(r.Context(), answerTime)
	defer cancel()
	status, answer := a.answer(ctx, r)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *Agent) answer(ctx context.Context, r *http.Request) (status int, answer any) {
	problem := func(status int, err error) (int, any) { return status, wire.Problem{Message: err.Error()} }
	text, signed := strings.CutPrefix(r.Header.Get("Authorization"), Scheme)
	switch {
	case r.Method != http.MethodGet || r.ContentLength != 0:
		return problem(http.StatusMethodNotAllowed, errors.New("expected GET, without a body"))
	case !signed:
		return problem(http.StatusUnauthorized, errors.New("the request is not signed"))
	}
	node, err := a.name(ctx)
	if err != nil {
		return problem(http.StatusServiceUnavailable, err)
	}
	if err := a.verify.Accept(text, node, r.RequestURI); err != nil {
		return problem(http.StatusUnauthorized, err)
	}
	switch r.RequestURI {
	case "/v1/status":
		answer, err = a.tokens.Status(ctx)
	case "/v1/faults":
		var list []wire.InstanceFault
		list, err = a.tokens.Faults(ctx)
		answer = wire.Faults{Faults: list}
	case "/v1/devices":
		var list []wire.DeviceMemory
		list, err = a.tokens.Devices(ctx)
		answer = wire.Devices{GPUs: list}
	default:
		return problem(http.StatusNotFound, errors.New("unknown path"))
	}
	if err != nil {
		return problem(http.StatusServiceUnavailable, err)
	}
	return http.StatusOK, answer
}

// name returns the node's name.
func (a *Agent) name(ctx context.Context) (string, error) {
	a.mu.Lock()
	node := a.node
	a.mu.Unlock()
	if node != "" {
		return node, nil
	}
	s, err := a.tokens.Status(ctx)
	if err == nil && s.Node == "" {
		err = errors.New("the token daemon of the node has no name of the node: start it with --trust")
	}
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = s.Node
	return s.Node, nil
}
