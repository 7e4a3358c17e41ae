package token

import (
	"time"

	"github.com/gfaas/gfaas/pkg/reason"
)

// why is a reason in the form in which multiToken keeps it. It allocates nothing until full is
// called: with hundreds of clients, most reasons are replaced before anybody reads them.
type why struct {
	code   reason.Code
	budget budget    // of the client's instance or, if another client needs the SMs, of that client's
	other  *client   // the client that the decision depends on, or nil
	beside bool      // a lease fits next to other; without beside, it passes other
	owner  *instance // turnOfOther: the instance whose turn it is
	in     time.Duration
	pct    float64
}

// budget describes the budget of an instance in this window: the missing part of its request or,
// without one, the time that it owes to others and the time left to its limit.
type budget struct{ missing, owed, left time.Duration }

// budgetStatus returns the reason for a lease of the client, from the budget of its instance.
func budgetStatus(c *client) why {
	if missing := c.inst.guaranteed(); missing > 0 {
		if c.light {
			return why{code: usesLittle, budget: budget{missing: missing}}
		}
		return why{code: belowRequest, budget: budget{missing: missing}}
	}
	left := c.inst.remainingBudget()
	if owed := -c.inst.credit; owed > 0 {
		return why{code: owesTime, budget: budget{owed: owed, left: left}}
	}
	return why{code: aboveRequest, budget: budget{left: left}}
}

// full returns the reason with its parameters.
func (w why) full() reason.Reason {
	params := make([]reason.Param, 0, 4)
	switch w.code {
	case smsNeeded, afterOther:
		params = append(params, reason.Number("client", w.other.id), reason.Text("instance", w.other.inst.id))
	}
	switch w.code {
	case usesLittle, belowRequest, owesTime, aboveRequest, smsNeeded:
		params = w.budget.append(params)
	case budgetUsedUp:
		params = append(params, reason.Millis("left_ms", w.budget.left))
	case afterOther:
		params = append(params, reason.Number("occupied_pct", w.pct))
	case handoverLimit:
		params = append(params, reason.Millis("in_ms", w.in))
	case waitingForSMs:
		params = append(params, reason.Number("sm_pct", w.pct), reason.Millis("in_ms", w.in))
	case turnOfOther:
		params = append(params, reason.Text("instance", w.owner.id), reason.Millis("in_ms", w.in))
	}
	switch {
	case w.other == nil || w.code == smsNeeded || w.code == afterOther:
	case w.beside:
		params = append(params, reason.Number("beside", w.other.id))
	default:
		params = append(params, reason.Number("passes", w.other.id), reason.Millis("fits_in_ms", w.in))
	}
	return reason.New(w.code, params...)
}

// append appends the parameters that describe the budget.
func (b budget) append(to []reason.Param) []reason.Param {
	if b.missing > 0 {
		return append(to, reason.Millis("missing_ms", b.missing))
	}
	if b.owed > 0 {
		to = append(to, reason.Millis("owed_ms", b.owed))
	}
	return append(to, reason.Millis("left_ms", b.left))
}
