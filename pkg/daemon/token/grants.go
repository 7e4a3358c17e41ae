package token

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Grants is the configuration for instances that register themselves by grants.
type Grants struct {
	Trust grant.Trust
	Node  string        // this node's name in grants
	Keep  time.Duration // how long a registration stays after the last process of its instance has ended

	// Reload, if set, reads the trusted keys again on SIGHUP. It does not affect accepted grants.
	Reload func() (grant.Trust, error)
}

const (
	// GrantedDir is the folder in the run directory that containers of instances with grants mount. It contains only
	// their socket and files that are the same for all of them.
	GrantedDir = "granted"
	// grantsDir is the folder in the run directory with the registrations by grants. Daemons that do not know grants
	// ignore it.
	grantsDir = "grants"
)

// grants verifies grants and remembers the accepted ones. The core's lock guards it.
type grants struct {
	*core
	registry *registry
	records  records // of registrations by grants
	trust    grant.Trust
	accepted map[string]*accepted // the last accepted grant of each instance, by ID
	now      func() time.Time     // time.Now, except in tests

	// verifying lets one goroutine at a time verify a signature, so that invalid grants cannot occupy all CPUs. It is
	// taken without the core's lock.
	verifying sync.Mutex
}

// accepted describes the last accepted grant of an instance. It outlives the registration until all accepted grants of
// the instance have expired, so that an earlier one cannot be used again.
type accepted struct {
	Serial  uint64     `json:"serial"`
	Hash    grant.Hash `json:"grant_sha256"`
	Until   time.Time  `json:"until"`             // largest not_after of the instance's accepted grants
	Ended   time.Time  `json:"ended,omitzero"`    // when the instance's last process had ended; zero: a process may be running
	Revoked bool       `json:"revoked,omitempty"` // the grant registers the instance no more
}

// expired reports whether all accepted grants of the instance have expired.
func (a *accepted) expired(now time.Time) bool { return now.After(a.Until.Add(grant.Skew)) }

// verify returns the instance that a grant allows, for a process that presents id and secret. It returns nil if the
// instance is registered by this grant already; the grant's time does not matter then.
func (g *grants) verify(text string, id, secret wire.Name) (*instance, error) {
	hash := grant.HashOf(text)
	var trust grant.Trust
	var now time.Time
	registered := false
	if err := g.locked(func() {
		now = g.now()
		inst := g.registry.instances[id.String()]
		registered = inst != nil && inst.grant != nil && inst.grant.Hash == hash
		trust = g.trust
	}); err != nil || registered {
		return nil, err
	}
	g.verifying.Lock()
	gr, err := trust.Verify(text)
	g.verifying.Unlock()
	if err != nil {
		return nil, err
	}
	if err := gr.CheckNode(g.cfg.Grants.Node); err != nil {
		return nil, err
	}
	got := grant.HashOf(secret.String())
	if gr.Instance != id.String() || subtle.ConstantTimeCompare(got[:], gr.Secret[:]) == 0 {
		return nil, errors.New("instance and secret do not match the grant")
	}
	if err := gr.CheckTime(now); err != nil {
		return nil, err
	}
	return &instance{reg: gr.Registration(), secret: gr.Secret, grant: &accepted{Serial: gr.Serial, Hash: hash, Until: gr.NotAfter}}, nil
}

// check returns an error if a grant cannot register its instance now. It keeps the latest time of the instance's
// accepted grants in the new one. The caller holds the lock.
func (g *grants) check(id string, next *accepted) error {
	last := g.accepted[id]
	switch inst := g.registry.instances[id]; {
	case inst != nil && inst.grant == nil:
		return fmt.Errorf("instance %s is registered on this node, which a grant does not replace", id)
	case last == nil:
		return nil
	case next.Serial < last.Serial || next.Serial == last.Serial && next.Hash != last.Hash:
		return fmt.Errorf("the grant's serial %d is not above %d, that of the last accepted grant", next.Serial, last.Serial)
	case next.Serial == last.Serial && last.Revoked:
		return errors.New("the grant was revoked when the instance was unregistered")
	case last.Until.After(next.Until):
		next.Until = last.Until
	}
	return nil
}

// end keeps an accepted grant after the end of its registration, until it has expired. If the record cannot be written, end
// returns an error, and the next daemon restores the registration. The caller holds the lock.
func (g *grants) end(id string, a *accepted, revoked bool) error {
	if a.expired(g.now()) {
		delete(g.accepted, id)
		g.records.remove(id)
		return nil
	}
	ended := *a
	ended.Revoked = revoked
	text, _ := json.Marshal(record{Registration: wire.Registration{Instance: id}, Grant: &ended}) // cannot fail: it has no numbers that are not finite
	if err := g.records.write(id, text); err != nil {
		return err
	}
	a.Revoked = revoked
	return nil
}

// load reads the accepted grants of the previous daemon, and returns the instances that they have registered.
func (g *grants) load() ([]*instance, error) {
	all, err := g.records.load()
	return slices.DeleteFunc(all, func(i *instance) bool {
		if i.grant != nil {
			g.accepted[i.reg.Instance] = i.grant
		}
		return i.reg.GPU == "" || i.grant == nil
	}), err
}

// reap updates when the last process of an instance has ended. It reports whether the registration must end. The
// caller holds the lock.
func (g *grants) reap(inst *instance) bool {
	running, now := inst.connected() > 0 || len(inst.findings.members) > 0, g.now()
	switch a := inst.grant; {
	case running == a.Ended.IsZero():
		return !running && now.Sub(a.Ended) >= g.cfg.Grants.Keep
	case running:
		a.Ended = time.Time{}
	default:
		a.Ended = now
	}
	if err := g.records.write(inst.reg.Instance, inst.encode()); err != nil {
		g.log.Error("cannot save a registration", "instance", inst.reg.Instance, "err", err)
	}
	return false
}

// forget removes the accepted grants without a registration that have expired. The caller holds the lock.
func (g *grants) forget() {
	now := g.now()
	for id, a := range g.accepted {
		if inst := g.registry.instances[id]; (inst == nil || inst.grant == nil) && a.expired(now) {
			delete(g.accepted, id)
			g.records.remove(id)
		}
	}
}

// reload reads the trusted keys again.
func (g *grants) reload() error {
	if g.cfg.Grants == nil || g.cfg.Grants.Reload == nil {
		return nil
	}
	trust, err := g.cfg.Grants.Reload()
	if err != nil {
		return err
	}
	g.log.Info("trusted keys read", "keys", trust.Len())
	return g.locked(func() { g.trust = trust })
}
