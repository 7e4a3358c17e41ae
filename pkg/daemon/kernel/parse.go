package kernel

import (
	"slices"
	"sync"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// requestParser parses requests. It caches parsed requests and PTX signatures, because clients often
// send the same text repeatedly.
type requestParser struct {
	mu         sync.Mutex
	requests   map[string]*kgraph.Request
	signatures signatures
	ptx        int // total length of the PTX in signatures
}

// signatures maps PTX to its signature, or to nil if the text is not PTX.
type signatures map[string]*kgraph.Signature

func (s signatures) of(text string) (*kgraph.Signature, bool) { return s[text], s[text] != nil }

// Limits of the cache. A signature may take ten times the memory of its PTX.
const (
	maxCachedRequests = 128      // number of requests
	maxCachedRequest  = 64 << 10 // length of a cached request in bytes
	maxCachedPTX      = 4 << 20  // total length of PTX in bytes
)

// parse parses a request and the PTX in it. It returns a copy that Check may modify.
func (p *requestParser) parse(text []byte) (*kgraph.Request, signatures, *kgraph.Problem) {
	p.mu.Lock()
	r := p.requests[string(text)]
	p.mu.Unlock()
	if r == nil {
		var problems []*kgraph.Problem
		if r, problems = kgraph.Parse(text); len(problems) > 0 {
			return nil, nil, problems[0]
		}
		if len(text) <= maxCachedRequest {
			p.mu.Lock()
			if p.requests == nil || len(p.requests) >= maxCachedRequests {
				p.requests = map[string]*kgraph.Request{}
			}
			p.requests[string(text)] = r
			p.mu.Unlock()
		}
	}
	own := *r
	own.Modules, own.Buffers, own.Kernels = slices.Clone(r.Modules), slices.Clone(r.Buffers), slices.Clone(r.Kernels)
	sigs := signatures{}
	for i := range r.Modules {
		if text := r.Modules[i].PTX; text != "" {
			sigs[text] = p.signature(text)
		}
	}
	return &own, sigs, nil
}

// signature returns the signature of PTX, or nil if the text is not PTX.
func (p *requestParser) signature(text string) *kgraph.Signature {
	p.mu.Lock()
	s, known := p.signatures[text]
	p.mu.Unlock()
	if known {
		return s
	}
	s, isPTX := kgraph.ReadPTX(text)
	if !isPTX {
		s = nil
	}
	if len(text) > maxCachedPTX {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.signatures == nil || p.ptx+len(text) > maxCachedPTX {
		p.signatures, p.ptx = signatures{}, 0
	}
	if _, known := p.signatures[text]; !known {
		p.signatures[text] = s
		p.ptx += len(text)
	}
	return s
}
