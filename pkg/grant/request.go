package grant

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

const (
	// MaxRequest is the largest text of a request, in bytes.
	MaxRequest = 1 << 10
	// maxSeen is the largest number of requests within twice the Skew. A gateway sends about ten in a second.
	maxSeen = 1 << 16
	// maxNonce is the longest nonce, in bytes.
	maxNonce = 64
)

// requests is the form of a request's text.
var requests = form{what: "request", prefix: "gfaas-request-v1.", max: MaxRequest}

// request asks the agent of a node.
type request struct {
	Node  string    `json:"node"`
	Path  string    `json:"path"` // with the query
	Time  time.Time `json:"time"` // when it was signed
	Nonce string    `json:"nonce"`
}

// SignRequest returns the text of a request to the agent of a node. The agent accepts it once.
func (k PrivateKey) SignRequest(node, path string) string {
	document, err := json.Marshal(request{Node: node, Path: path, Time: time.Now().UTC(), Nonce: rand.Text()})
	if err != nil {
		panic(err) // the time is in a year that JSON can represent
	}
	return requests.sign(k, document)
}

// Verifier decides which requests the agent of a node accepts. It accepts each request once, and within the Skew of
// its time. It does not know requests from before NewVerifier, and refuses them. A Verifier is safe for concurrent use.
type Verifier struct {
	trust Trust
	start time.Time

	mu     sync.Mutex
	seen   map[string]time.Time // accepted requests: their times by nonce
	forgot time.Time            // when old ones were last removed from seen
}

// NewVerifier returns a Verifier of requests that one of the trusted keys has signed.
func NewVerifier(trust Trust) *Verifier {
	now := time.Now()
	return &Verifier{trust: trust, start: now, forgot: now, seen: map[string]time.Time{}}
}

// Accept returns an error, of a single line, unless text is a valid request to a node with a path, and is new.
func (v *Verifier) Accept(text, node, path string) error {
	document, err := requests.verify(v.trust, text)
	if err != nil {
		return err
	}
	var r request
	if err := requests.decode(document, &r); err != nil {
		return err
	}
	now := time.Now()
	switch age := now.Sub(r.Time); {
	case r.Nonce == "" || len(r.Nonce) > maxNonce:
		return fmt.Errorf("invalid request: nonce of %d bytes, expected 1 to %d", len(r.Nonce), maxNonce)
	case r.Node != node:
		return fmt.Errorf("the request is for node %.*q, and this is node %s", maxNode, r.Node, node)
	case r.Path != path:
		return errors.New("the request was signed for another path")
	case age > Skew || age < -Skew:
		return fmt.Errorf("the request was signed at %s, and it is %s here: expected a difference of at most %v", r.Time.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), Skew)
	case r.Time.Before(v.start):
		return errors.New("the request was signed before the agent started")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(v.forgot) > Skew {
		v.forgot = now
		maps.DeleteFunc(v.seen, func(_ string, signed time.Time) bool { return now.Sub(signed) > Skew })
	}
	if _, known := v.seen[r.Nonce]; known {
		return errors.New("the request was sent before")
	}
	if len(v.seen) >= maxSeen {
		return fmt.Errorf("more than %d requests in %v", maxSeen, 2*Skew)
	}
	v.seen[r.Nonce] = r.Time
	return nil
}
