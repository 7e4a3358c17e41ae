package planned

import (
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

// device is a GPU, whose time the policy gives out.
type device struct {
	world   *world
	policy  token.Policy
	workers []*worker // whose number and one is its client's
	wakes   time.Duration
	events  []token.Event  // that the policy is not told yet
	actions []token.Action // scratch of tell
	telling bool
}

func newDevice(w *world, window time.Duration) *device {
	policy, err := token.Make(token.MultiToken, token.Config{Window: window}, 0)
	if err != nil {
		panic(err) // there is that policy
	}
	return &device{world: w, policy: policy}
}

// add puts an instance on the GPU.
func (d *device) add(in Instance, f *function) {
	w := newWorker(d, in, token.ClientID(len(d.workers)+1))
	d.workers = append(d.workers, w)
	name := strconv.Itoa(len(d.workers))
	d.tell(token.AddInstance{Instance: name, Slice: in.Slice, Turns: in.Turns})
	d.tell(token.AddClient{Client: w.client, Instance: name})
	if in.Endless {
		d.tell(token.Request{Client: w.client})
		return
	}
	f.add(w)
}

// tell tells the policy what happened, and does what it says. What comes of that is
// told after it.
func (d *device) tell(ev token.Event) {
	d.events = append(d.events, ev)
	if d.telling {
		return
	}
	d.telling = true
	for n := 0; n < len(d.events); n++ {
		d.actions = d.policy.Step(d.world.now, d.events[n:n+1], d.actions[:0])
		for _, a := range d.actions {
			switch a := a.(type) {
			case token.Grant:
				d.workers[a.Client-1].granted(a.Lease)
			case token.Revoke:
				d.workers[a.Client-1].revoked()
			case token.WakeAt:
				d.wakes = a.At
				d.world.agenda.push(a.At, occasion{kind: wake, device: d})
			}
		}
	}
	d.events, d.telling = d.events[:0], false
}
