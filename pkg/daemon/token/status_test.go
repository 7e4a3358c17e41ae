package token

import (
	"testing"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// TestStatusOfWhatIsOwed: a status has both what an instance used beyond its limit and what
// it owes to others.
func TestStatusOfWhatIsOwed(t *testing.T) {
	a := &allocation{inst: &instance{}}
	row := a.row(policy.InstanceStatus{Debt: 3 * time.Millisecond, Owed: 2500 * time.Microsecond})
	if row.DebtMS != 3 || row.OwedMS != 2.5 {
		t.Errorf("debt %v ms, owed %v ms", row.DebtMS, row.OwedMS)
	}
}
