package kernel

import (
	"slices"
	"sync"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// parsed keeps the requests that were read last: most that come are the same as
// ones before.
type parsed struct {
	mu         sync.Mutex
	requests   map[string]*kgraph.Request
	signatures map[string]*kgraph.Signature // nil: no PTX
}

// What is kept: so many requests, each of so many bytes at most.
const (
	keptRequests  = 128
	keptRequest   = 64 << 10
	keptSignature = 256
)

// parse reads a request. The result may be changed by Check.
func (d *Daemon) parse(text []byte) (*kgraph.Request, func(string) (*kgraph.Signature, bool), *Problem) {
	k := &d.parsed
	k.mu.Lock()
	r := k.requests[string(text)]
	k.mu.Unlock()
	if r == nil {
		var problems []*kgraph.Problem
		if r, problems = kgraph.Parse(text); len(problems) > 0 {
			return nil, nil, problem(problems[0].Code, problems[0].Where, "%s", problems[0].Message)
		}
		if len(text) <= keptRequest {
			k.mu.Lock()
			if k.requests == nil || len(k.requests) >= keptRequests {
				k.requests = map[string]*kgraph.Request{}
			}
			k.requests[string(text)] = r
			k.mu.Unlock()
		}
	}
	own := *r
	own.Buffers, own.Kernels = slices.Clone(r.Buffers), slices.Clone(r.Kernels)
	return &own, k.signature, nil
}

// signature reads PTX.
func (k *parsed) signature(text string) (*kgraph.Signature, bool) {
	k.mu.Lock()
	s, known := k.signatures[text]
	k.mu.Unlock()
	if known {
		return s, s != nil
	}
	s, isPTX := kgraph.ReadPTX(text)
	if !isPTX {
		s = nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signatures == nil || len(k.signatures) >= keptSignature {
		k.signatures = map[string]*kgraph.Signature{}
	}
	k.signatures[text] = s
	return s, isPTX
}
