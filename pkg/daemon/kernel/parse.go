package kernel

import (
	"slices"
	"sync"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// parsed keeps what was read last: most requests that come are the same as ones
// before.
type parsed struct {
	mu         sync.Mutex
	requests   map[string]*kgraph.Request
	signatures signatures
	ptx        int // bytes of the text of those
}

// signatures are those of PTX, by its text; nil: it is no PTX.
type signatures map[string]*kgraph.Signature

func (s signatures) of(text string) (*kgraph.Signature, bool) { return s[text], s[text] != nil }

// What is kept: so many requests, each of so many bytes at most, and the signatures
// of so many bytes of PTX, which may take ten times as much.
const (
	keptRequests = 128
	keptRequest  = 64 << 10
	keptPTX      = 4 << 20
)

// parse reads a request, which Check may change, and the PTX in it.
func (d *Daemon) parse(text []byte) (*kgraph.Request, signatures, *Problem) {
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
	var read signatures
	for i := range r.Modules {
		if text := r.Modules[i].PTX; text != "" {
			if read == nil {
				read = signatures{}
			}
			read[text] = k.signature(text)
		}
	}
	return &own, read, nil
}

// signature reads PTX.
func (k *parsed) signature(text string) *kgraph.Signature {
	k.mu.Lock()
	s, known := k.signatures[text]
	k.mu.Unlock()
	if known {
		return s
	}
	s, isPTX := kgraph.ReadPTX(text)
	if !isPTX {
		s = nil
	}
	if len(text) > keptPTX {
		return s
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signatures == nil || k.ptx+len(text) > keptPTX {
		k.signatures, k.ptx = signatures{}, 0
	}
	if _, known := k.signatures[text]; !known {
		k.signatures[text] = s
		k.ptx += len(text)
	}
	return s
}
