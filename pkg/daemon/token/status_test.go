package token

import (
	"testing"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// TestStatusShowsDebtAndOwed checks that a status shows both the use beyond the limit and the time owed
// to others.
func TestStatusShowsDebtAndOwed(t *testing.T) {
	a := &allocation{inst: &instance{}}
	row := a.row(policy.InstanceStatus{Debt: 3 * time.Millisecond, Owed: 2500 * time.Microsecond})
	if row.DebtMS != 3 || row.OwedMS != 2.5 {
		t.Errorf("got a debt of %v ms and %v ms owed, want 3 and 2.5", row.DebtMS, row.OwedMS)
	}
}
