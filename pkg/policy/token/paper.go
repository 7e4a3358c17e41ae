package token

import "cmp"

// # The published order
//
// With Settings.GrantOrder OrderPaper, multi-token is the scheduler as printed (FaST-GShare,
// section 3.3.2), for comparisons:
//
//  1. Waiting clients whose instance has budget are ordered by Q_miss, the missing part of the
//     request. Equal clients are ordered by waiting time, then by ID, which the paper leaves open.
//  2. Leases are granted in this order up to the first client that does not fit. The clients after
//     it wait, even if they would fit.
//  3. There are no rounds, turns, light clients, aged clients or credit.
//
// The paper does not say when a token is taken back. As in the default order, a lease ends when the
// guaranteed part of the budget is used up, at the latest at the window's end, and use beyond the
// limit is debt.

// The values of Settings.GrantOrder.
const (
	OrderRounds = "rounds" // the order of this project, as "" is
	OrderPaper  = "paper"
)

// GrantOrders returns the values of Settings.GrantOrder.
func GrantOrders() []string { return []string{OrderRounds, OrderPaper} }

// schedulePaper decides, in the published order, about all waiting clients with budget and all
// clients whose lease has reached its planned end.
func (s *admission) schedulePaper() {
	s.recount()
	queue, occupied := s.candidates()
	var head *client // the first client that does not fit
	for _, c := range queue {
		switch {
		case c.state == Running && head == nil:
			c.end, c.why = s.leaseEnd(c, 0), budgetStatus(c)
		case c.state == Running:
			s.revoke(c, why{code: smsNeeded, other: head, budget: budgetStatus(head).budget})
		case head != nil:
			c.why = why{code: afterOther, other: head, pct: occupied}
		case s.fits(occupied, c):
			occupied += c.inst.slice.SMPct
			s.grant(c, s.leaseEnd(c, 1), budgetStatus(c))
		default:
			head = c
			c.why = why{code: waitingForSMs, pct: c.inst.slice.SMPct, in: max(0, s.nextPlannedEnd()-s.now)}
		}
	}
}

// comparePaper orders candidates by the missing part of their request.
func (s *admission) comparePaper(a, b *client) int {
	return cmp.Or(cmp.Compare(b.inst.guaranteed(), a.inst.guaranteed()), cmp.Compare(s.waitingSince(a), s.waitingSince(b)), cmp.Compare(a.id, b.id))
}
