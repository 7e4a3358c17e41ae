package planned

import (
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
	actions   []token.Action // scratch of report
	reporting bool
}

func newDevice(w *world, window time.Duration) *device {
	policy, err := token.New(token.MultiToken, token.Config{Settings: token.Settings{Window: window}}, 0)
	if err != nil { // the policy exists
		panic(err)
	}
	return &device{world: w, policy: policy}
}

// add adds an instance to the GPU.
func (d *device) add(in Instance, f *function) {
	inst := newInstance(d, in, token.ClientID(len(d.instances)+1))
	d.instances = append(d.instances, inst)
	name := strconv.Itoa(len(d.instances))
	d.report(token.AddInstance{Instance: name, Slice: in.Slice, Turns: in.Turns})
	d.report(token.AddClient{Client: inst.client, Instance: name})
	if in.Endless {
		d.report(token.Request{Client: inst.client})
		return
	}
	f.add(inst)
}

// wake performs the policy's last WakeAt. Earlier ones are void.
func (d *device) wake() {
	if d.wakeAt == d.world.now {
		d.report(token.Wake{})
	}
}

// report reports an event to the policy and performs its actions. Events that these actions cause
// are reported afterwards.
func (d *device) report(ev token.Event) {
	d.events = append(d.events, ev)
	if d.reporting {
		return
	}
	d.reporting = true
	for n := 0; n < len(d.events); n++ {
		d.actions = d.policy.Step(d.world.now, d.events[n:n+1], d.actions[:0])
		for _, a := range d.actions {
			switch a := a.(type) {
			case token.Grant:
				d.instances[a.Client-1].onGranted(a.Lease)
			case token.Revoke:
				d.instances[a.Client-1].onRevoked()
			case token.WakeAt:
				d.wakeAt = a.At
				d.world.schedule(a.At, d.wake)
			}
		}
	}
	d.events, d.reporting = d.events[:0], false
}
