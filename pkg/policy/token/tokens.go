package token

import (
	"time"

	"github.com/gfaas/gfaas/pkg/reason"
)

// minTokenPeriods and maxTokenPeriods are the least and the largest number of periods for which tokens
// stay valid. With one period, some tokens would always expire, because counters are read and wakes
// come a little late, and because not all clients of an instance may use their equal parts.
const minTokenPeriods, maxTokenPeriods = 2, 8

// tokens issues tokens and leases.
type tokens struct {
	*meter
	lease   uint32   // number of the next lease
	actions []Action // of the current Step
}

// accrue adds the tokens issued since the last call. Unused tokens expire. Overuse, which occurs
// because a kernel is launched as a whole, is debt; it remains while tokens do not bound the
// instance.
func (s *tokens) accrue(i *meteredInstance) {
	since := s.now - i.accrued
	i.accrued = s.now
	periods := time.Duration(max(minTokenPeriods, i.activeClients))
	if i.activeClients > 0 {
		periods = max(periods, since/s.params.period+1) // woken late: the instance waited for these tokens
	}
	validity := min(periods, maxTokenPeriods) * s.params.period
	share := i.issued + i.repay(since)
	limited := s.limited(i)
	if !limited {
		share, i.level = i.issued, min(i.level, 0)
	}
	rate := share / i.alone * i.gauge.speed // in blocks per second of the whole GPU
	capacity, level := rate*validity.Seconds()+1, i.level+rate*since.Seconds()
	i.level = min(level, capacity)
	if level > capacity && limited && i.runs() {
		s.creditExpired(i, level-capacity)
	}
}

// creditExpired credits an instance with tokens that expired while it ran below its request, because
// kernels of other instances continued beyond their tokens. The credit is at most the debt of
// those instances.
func (s *tokens) creditExpired(i *meteredInstance, tokens float64) {
	used, debts := 0.0, 0.0
	for _, r := range i.rates {
		used += r / float64(len(i.rates))
	}
	if used >= i.request {
		return
	}
	for _, o := range s.instances {
		if o != i && o.level < 0 {
			debts += o.gauge.timeOf(-o.level).Seconds() * o.alone
		}
	}
	if debts > 0 {
		i.owed = max(i.owed, min(i.owed+i.gauge.timeOf(tokens).Seconds()*i.alone, debts))
	}
}

// repay returns the additional share that the instance receives for time that trials of others
// took from it; negative for time that its own trials gave it. The whole amount is paid within
// repayOver, unless the instance would keep less than half of its own share.
func (i *meteredInstance) repay(since time.Duration) (share float64) {
	share = max(i.owed/repayOver.Seconds(), -i.issued/2)
	i.owed -= share * min(since, repayOver).Seconds()
	return share
}

// allot divides an instance's tokens equally among its running clients. The remainder goes to the
// clients that have launched least.
func (s *tokens) allot(i *meteredInstance) {
	var running []*meteredClient
	for _, c := range i.clients {
		if c.state == Running {
			running = append(running, c)
		}
	}
	if len(running) == 0 {
		return
	}
	each, odd, r := Unlimited, 0, reason.Reason{}
	if s.limited(i) {
		tokens := uint64(max(i.level, 0))
		each, odd = tokens/uint64(len(running)), int(tokens%uint64(len(running)))
	}
	for _, c := range running {
		budget := Unlimited
		if each != Unlimited {
			budget = c.blocks + each
			if rank(c, running) < odd {
				budget++
			}
		}
		if budget != c.budget {
			if r.IsZero() {
				r = s.budgetReason(i)
			}
			c.budget = budget
			s.actions = append(s.actions, Budget{Client: c.id, Blocks: budget, Reason: r})
		}
	}
}

// budgetReason returns the reason for the budgets of an instance's clients.
func (s *tokens) budgetReason(i *meteredInstance) reason.Reason {
	if s.limited(i) {
		return reason.New(tokensIssued, reason.Text("phase", i.phase.String()))
	}
	return reason.New(i.unmetered(s.trial))
}

// unmetered returns the reason why tokens do not bound the instance.
func (i *meteredInstance) unmetered(t *trial) reason.Code {
	switch {
	case t != nil && t.client.inst == i:
		return measuredAlone
	case i.gauge.speed == 0:
		return notMeasured
	}
	return unmetered
}

// rank returns how many of the clients have launched less than c, ties broken by ID.
func rank(c *meteredClient, all []*meteredClient) (n int) {
	for _, o := range all {
		if o.blocks < c.blocks || o.blocks == c.blocks && o.id < c.id {
			n++
		}
	}
	return n
}

// admit grants leases to all waiting clients with tokens, unless a trial is in progress.
func (s *tokens) admit() {
	if s.trial != nil {
		return
	}
	for _, c := range s.clients {
		if c.state != Waiting {
			continue
		}
		s.accrue(c.inst)
		switch {
		case c.inst.gauge.untried():
			c.reason = reason.New(waitingForTrial)
		case s.limited(c.inst) && c.inst.level < 1:
			c.reason = reason.New(tokensUsedUp)
		default:
			s.grant(c, byTokens)
		}
	}
}

// grant grants a lease to a client, preceded by its budget.
func (s *tokens) grant(c *meteredClient, code reason.Code) {
	c.state, c.since, c.lease, c.reason = Running, s.now, s.lease, reason.New(code)
	s.lease = validLease(s.lease + 1)
	c.beginRun(s.now)
	s.allot(c.inst)
	s.actions = append(s.actions, Grant{Client: c.id, Lease: c.lease, Reason: c.reason})
}

func (s *tokens) revoke(c *meteredClient, r reason.Reason) {
	c.state, c.reason = Draining, r
	s.actions = append(s.actions, Revoke{Client: c.id, Lease: c.lease, Reason: r})
}
