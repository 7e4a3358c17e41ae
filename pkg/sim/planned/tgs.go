package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

// TGS is the name of the policy of TGS ("Transparent GPU Sharing in Container Clouds for Deep Learning
// Workloads"), to which the Dilu paper compares its own (section 5.1). It exists in simulations alone.
const TGS = "tgs"

// The constants of TGS are ours. In each period of tgsControl, the share of the opportunistic instances
// either grows by tgsStep or is halved.
const (
	tgsPeriod  = 10 * time.Millisecond // between two budgets
	tgsControl = 10                    // periods between two changes of the share
	tgsStep    = 0.01                  // growth of the share, as a fraction of the GPU
	tgsLoss    = 0.1                   // decrease of the productive instance's rate that counts as interference
)

// tgs implements TGS on one GPU. The first instance is productive and has no limit. All others are
// opportunistic: they share a budget, which grows slowly while the productive instance launches at least as
// much as before, and is halved when it launches less. TGS does not partition SMs: give each instance all of
// them.
type tgs struct {
	clients []tgsClient
	share   float64 // of each opportunistic instance, as a fraction of the GPU
	next    time.Duration
	periods int
	rate    uint64 // blocks of the productive instance in the last control period
	counted uint64 // its blocks at the start of the current one
}

type tgsClient struct {
	blocks uint64
	lease  uint32 // 0: none
	wants  bool
}

// Snapshot implements token.Policy. It returns nothing, because the simulator does not read it.
func (p *tgs) Snapshot() token.Snapshot { return token.Snapshot{} }

// Step implements token.Policy.
func (p *tgs) Step(now time.Duration, events []token.Event, actions []token.Action) []token.Action {
	wake := false
	for _, ev := range events {
		switch ev := ev.(type) {
		case token.AddClient: // numbered from 1
			p.clients = append(p.clients, tgsClient{})
		case token.Request:
			p.clients[ev.Client-1].wants = true
		case token.Return:
			p.clients[ev.Client-1].lease, p.clients[ev.Client-1].wants = 0, ev.WantsMore
		case token.Sample:
			p.clients[ev.Client-1].blocks = ev.Blocks
		case token.Wake:
			wake = true
		}
	}
	if wake {
		if p.periods++; p.periods%tgsControl == 0 {
			p.control()
		}
	}
	if wake || p.next == 0 {
		p.next = now + tgsPeriod
		actions = append(actions, token.WakeAt{At: p.next})
	}
	for i := range p.clients {
		c, id := &p.clients[i], token.ClientID(i+1)
		granted := c.wants && c.lease == 0
		switch {
		case i == 0 && granted:
			actions = append(actions, token.Budget{Client: id, Blocks: token.Unlimited})
		case i > 0 && (granted || wake && c.lease != 0):
			// A new lease begins with the next period, so that it gives no second budget in this one.
			budget := c.blocks
			if wake {
				budget += uint64(p.share * float64(tgsPeriod/blockTime))
			}
			actions = append(actions, token.Budget{Client: id, Blocks: budget})
		}
		if granted {
			c.lease, c.wants = 1, false
			actions = append(actions, token.Grant{Client: id, Lease: c.lease})
		}
	}
	return actions
}

// control changes the share of the opportunistic instances.
func (p *tgs) control() {
	rate := p.clients[0].blocks - p.counted
	p.counted = p.clients[0].blocks
	if float64(rate) < (1-tgsLoss)*float64(p.rate) {
		p.share /= 2
	} else {
		p.share = min(1, p.share+tgsStep)
	}
	p.rate = rate
}
