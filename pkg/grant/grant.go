// Package grant signs and verifies grants. A grant is a document that allows an instance a slice on one node. The
// component that places the instance signs the grant. The node's token daemon trusts the signer's key, so it
// registers the instance when a process of the instance presents the grant.
//
// The text of a grant is
//
//	gfaas-grant-v1.DOCUMENT.SIGNATURE
//
// where both parts are in unpadded base64url. DOCUMENT is JSON. SIGNATURE is an Ed25519 signature of the bytes
// "gfaas-grant-v1." followed by the bytes of the document. The verifier uses the document's bytes as they were
// sent, and does not encode it again. The prefix stands for the format and its only algorithm. A document with
// unknown or repeated keys is invalid, because an unknown key could be a restriction.
//
// A grant alone gives no access: it contains only the hash of the instance's secret, and a process must know the
// secret as well.
//
// pkg/daemon/token verifies grants, and pkg/command/place/manifest signs them.
//
// The same key signs requests of a gateway to the agents of nodes (Request). Their text has the same form, with
// the prefix gfaas-request-v1.
package grant

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	// MaxSize is the largest text of a grant, in bytes.
	MaxSize = wire.MaxGrant
	// Skew is the largest allowed difference between the clocks of the signer and the verifier.
	Skew = 60 * time.Second

	// maxNode is the largest length of a node's name, in bytes. It is that of host names.
	maxNode = 253
	// maxSerial is the largest serial that all JSON libraries represent exactly.
	maxSerial = 1<<53 - 1
)

// grants is the form of a grant's text.
var grants = form{what: "grant", prefix: "gfaas-grant-v1.", max: MaxSize}

// Grant allows an instance a slice on one node.
type Grant struct {
	Node      string            `json:"node"`
	Instance  string            `json:"instance"`
	Function  string            `json:"function"`
	Secret    Hash              `json:"secret_sha256"`            // hash of the instance's secret
	Serial    uint64            `json:"serial"`                   // increases with each grant of the instance
	NotAfter  time.Time         `json:"not_after"`                // limit on the first use; later uses may be after it
	GPUs      []wire.Allocation `json:"gpus"`                     // in the order in which the processes see the devices
	SLOMS     float64           `json:"slo_ms,omitempty"`         // latency objective; 0: none
	LLM       bool              `json:"llm,omitempty"`            // the function is a language model
	Training  bool              `json:"training,omitempty"`       // the instance is a training job
	Unmanaged bool              `json:"stop_unmanaged,omitempty"` // stop unmanaged processes, as wire.Registration.StopUnmanaged
}

// Hash is a SHA-256 hash. Its text form is lower-case hexadecimal.
type Hash [sha256.Size]byte

// HashOf returns the hash of a secret.
func HashOf(secret string) Hash { return sha256.Sum256([]byte(secret)) }

// MarshalText returns the hash in hexadecimal.
func (h Hash) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

// UnmarshalText parses a hash in hexadecimal.
func (h *Hash) UnmarshalText(text []byte) error {
	sum, err := hex.DecodeString(string(text))
	if err != nil || len(sum) != sha256.Size || strings.ToLower(string(text)) != string(text) {
		return errors.New("expected a SHA-256 in hexadecimal, in lower case")
	}
	*h = Hash(sum)
	return nil
}

// Of returns a grant that allows a registration. The caller sets Node, Serial and NotAfter.
func Of(r wire.Registration) Grant {
	return Grant{
		Instance: r.Instance, Function: r.Function, Secret: HashOf(r.Secret), GPUs: r.Allocations(),
		SLOMS: r.SLOMS, LLM: r.LLM, Training: r.Kind == function.Training, Unmanaged: r.StopUnmanaged,
	}
}

// Registration returns the registration that the grant allows. Its Secret is empty.
func (g Grant) Registration() wire.Registration {
	r := wire.Registration{Instance: g.Instance, Function: g.Function, SLOMS: g.SLOMS, LLM: g.LLM, StopUnmanaged: g.Unmanaged}
	if g.Training {
		r.Kind = function.Training
	}
	r.SetAllocations(g.GPUs)
	return r
}

// validate returns an error if a field is missing or out of range.
func (g Grant) validate() error {
	switch {
	case g.Node == "" || len(g.Node) > maxNode || !printable(g.Node):
		return fmt.Errorf("invalid node %.*q: expected 1 to %d bytes of printable characters", maxNode, g.Node, maxNode)
	case !printable(g.Function):
		return errors.New("invalid function: expected printable characters")
	case g.Secret == Hash{}:
		return errors.New("secret_sha256 is missing")
	case g.Serial == 0 || g.Serial > maxSerial:
		return fmt.Errorf("invalid serial %d: expected 1 to %d", g.Serial, uint64(maxSerial))
	case g.NotAfter.IsZero():
		return errors.New("not_after is missing")
	case len(g.GPUs) == 0:
		return errors.New("gpus is empty")
	}
	r := g.Registration()
	r.Secret = "known as a hash"
	return r.Validate()
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// CheckTime returns an error if it is too late to use the grant for the first time.
func (g Grant) CheckTime(now time.Time) error {
	if now.After(g.NotAfter.Add(Skew)) {
		return fmt.Errorf("the grant expired at %s", g.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// CheckNode returns an error if the grant is for another node.
func (g Grant) CheckNode(node string) error {
	if g.Node != node {
		return fmt.Errorf("the grant is for node %s, and this is node %s", g.Node, node)
	}
	return nil
}

// decode parses and validates a document. The caller has verified its signature.
func decode(document []byte) (g Grant, err error) {
	if err := grants.decode(document, &g); err != nil {
		return Grant{}, err
	}
	if err := g.validate(); err != nil {
		return Grant{}, fmt.Errorf("invalid grant: %w", err)
	}
	return g, nil
}

// Sign returns the text of a signed grant. It fails if a field is invalid or the text is larger than MaxSize. It
// drops fractions of a second from NotAfter.
func (k PrivateKey) Sign(g Grant) (string, error) {
	g.NotAfter = g.NotAfter.UTC().Truncate(time.Second)
	if err := g.validate(); err != nil {
		return "", fmt.Errorf("sign the grant of instance %s: %w", g.Instance, err)
	}
	document, err := json.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("sign the grant of instance %s: %w", g.Instance, err)
	}
	text := grants.sign(k, document)
	if len(text) > MaxSize {
		return "", fmt.Errorf("sign the grant of instance %s: it has %d bytes, and at most %d are allowed: the instance has too many GPUs or turns", g.Instance, len(text), MaxSize)
	}
	return text, nil
}

// Verify returns the grant in text. It fails if the text is malformed, if none of the trusted keys has signed it, or
// if a field is invalid. It does not check the node, the serial and the time: see CheckNode and CheckTime. The text
// of an error is one line.
func (t Trust) Verify(text string) (Grant, error) {
	document, err := grants.verify(t, text)
	if err != nil {
		return Grant{}, err
	}
	return decode(document)
}
