package planned

import (
	"cmp"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

// device is a GPU. Its policy grants leases to the instances.
type device struct {
	world     *world
	policy    token.Policy
	instances []*instance    // instance i is client i+1
	wakeAt    time.Duration  // time of the policy's last WakeAt
	events    []token.Event  // not reported to the policy yet
	actions   []token.Action // scratch of step
	reporting bool
	idleHold  time.Duration // idle time after which an instance returns its lease

	metered bool          // see isMetered
	changed bool          // with metered: retime is due
	samples []token.Event // scratch of wakeMetered
}

func newDevice(w *world, c Config) *device {
	name := cmp.Or(c.Policy, token.MultiToken)
	d := &device{world: w, policy: &tgs{}, idleHold: timetableHold, metered: isMetered(name)}
	if d.metered {
		d.idleHold = token.DefaultHold
	}
	if name == TGS {
		return d
	}
	policy, err := token.New(name, token.Config{Settings: token.Settings{Window: fromMS(c.WindowMS)}, Introspective: c.Introspective}, 0)
	if err != nil { // the caller has checked the name
		panic(err)
	}
	d.policy = policy
	return d
}

// add adds an instance to the GPU. registration has the settings that in lacks.
func (d *device) add(in Instance, f *function, registration token.AddInstance) {
	inst := newInstance(d, in, token.ClientID(len(d.instances)+1))
	d.instances = append(d.instances, inst)
	name := strconv.Itoa(len(d.instances))
	registration.Instance, registration.Slice, registration.Turns = name, in.Slice, in.Turns
	d.report(registration)
	d.report(token.AddClient{Client: inst.client, Instance: name})
	if in.Endless {
		d.report(token.Request{Client: inst.client})
		return
	}
	f.add(inst)
}

// wake performs the policy's last WakeAt. Earlier ones are void.
func (d *device) wake() {
	switch {
	case d.wakeAt != d.world.now:
	case d.metered:
		d.wakeMetered()
	default:
		d.report(token.Wake{})
	}
}

// report reports an event to the policy and performs its actions. Events that these actions cause
// are reported afterwards.
func (d *device) report(ev token.Event) {
	d.events = append(d.events, ev)
	if !d.reporting {
		d.reporting = true
		d.flush()
	}
}

// flush reports the events that are not reported yet.
func (d *device) flush() {
	for n := 0; n < len(d.events) || d.changed; {
		if n == len(d.events) {
			d.retime()
			continue
		}
		d.step(d.events[n : n+1])
		n++
	}
	d.events, d.reporting = d.events[:0], false
}

// step reports events to the policy at once and performs its actions.
func (d *device) step(events []token.Event) {
	d.actions = d.policy.Step(d.world.now, events, d.actions[:0])
	for _, a := range d.actions {
		switch a := a.(type) {
		case token.Grant:
			d.instances[a.Client-1].onGranted(a.Lease)
		case token.Revoke:
			d.instances[a.Client-1].onRevoked()
		case token.Budget:
			d.instances[a.Client-1].onBudget(a.Blocks)
		case token.WakeAt:
			d.wakeAt = a.At
			d.world.schedule(a.At, d.wake)
		}
	}
}
