package manifest

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/rollout"
)

// Signer signs the grants of a plan's instances, with which they register themselves at the token daemons of their
// nodes.
type Signer struct {
	Key      grant.PrivateKey
	Serial   uint64
	NotAfter time.Time
	Secret   func() string // returns a new secret for an instance
}

// NewSigner returns a signer for an export at the given time. The time is the serial of its grants: an instance of a
// later export replaces that of an earlier one.
func NewSigner(key grant.PrivateKey, now time.Time, valid time.Duration) *Signer {
	return &Signer{Key: key, Serial: uint64(now.UnixMilli()), NotAfter: now.Add(valid), Secret: preload.NewSecret}
}

const (
	// defaultValid is the default time for the first use of a grant. Later uses have no limit.
	defaultValid = 30 * 24 * time.Hour
	maxValid     = 100 * 365 * 24 * time.Hour
)

// signHelp describes signed manifests.
const signHelp = `With --sign KEY, gfaas register and .env are not necessary. The file then contains, for each
instance, a secret and a grant: a signed document that allows the instance its slice on its
node. A token daemon that trusts the key (gfaas-tokend --trust FILE --node NAME, with the name
of the node in the plan) registers the instance when its first process uses the GPU, at the
latest after the time --valid-for. Later starts have no time limit while the daemon keeps the
registration (--grant-keep). The file contains the secrets, so only its owner can read it. Each
export has new secrets and later grants, so the engine starts all instances again.

Folders and the user of the containers are those of an installed package and of the image,
unless you set GFAAS_RUN_DIR, GFAAS_LIB_DIR or GFAAS_USER (gfaas-environment(7)).`

// signFlags adds the flags of signed manifests.
func signFlags(f *pflag.FlagSet, o *Options) {
	f.StringVar(&o.KeyFile, "sign", "", "`file` of the private key (gfaas grant keygen) to sign the slices with, so that instances need no gfaas register")
	f.DurationVar(&o.Valid, "valid-for", defaultValid, "with --sign: time in which an instance must first use the GPU")
}

// sign gives each workload a secret and its grant. A grant allows what gfaas register would register for a container.
func (o Options) sign(p plan.Plan, list []*workload) error {
	if o.Signer == nil {
		return nil
	}
	var functions []function.Function
	byNode, byID := map[string]bool{}, map[string]*workload{}
	for _, w := range list {
		functions = append(functions, w.fn)
		byNode[w.node], byID[w.ID] = true, w
	}
	name := func(index int) string { return gpu.Device{Index: index, Simulated: o.Simulated}.String() }
	unsound, _ := rollout.Verify(p)
	for node := range byNode {
		assignments, err := rollout.Assign(p, node, functions, name, unsound)
		if err == nil {
			err = rollout.CheckContainers(p, assignments)
		}
		if err != nil {
			return err
		}
		for _, a := range assignments {
			w := byID[a.ID]
			w.secret = o.Signer.Secret()
			g := grant.Of(launch.NewRegistration(a.Function, a.Placement, w.secret))
			g.Node, g.Serial, g.NotAfter = node, o.Signer.Serial, o.Signer.NotAfter
			if w.signed, err = o.Signer.Key.Sign(g); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSigning returns an error if a flag of signed manifests is out of range. The error begins with the flag.
func (o Options) checkSigning() error {
	if o.KeyFile != "" && (o.Valid <= 0 || o.Valid > maxValid) {
		return fmt.Errorf("valid-for %v: expected more than 0 and at most 100 years", o.Valid)
	}
	return nil
}

// signedHead is the leading comment of a signed manifest.
func (o Options) signedHead() string {
	return "On each node, gfaas-tokend --trust registers the instances, because it trusts the key\n# " + o.Signer.Key.Public().String() +
		"\n# This file has the secrets of the instances. They must first use the GPU before " + o.Signer.NotAfter.UTC().Format(time.RFC3339) + "."
}
