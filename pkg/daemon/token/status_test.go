package token

import (
	"testing"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// TestStatusOfWhatIsOwed checks that a status shows both the use beyond the limit and the time owed
// to others.
func TestStatusOfWhatIsOwed(t *testing.T) {
	a := &allocation{inst: &instance{}}
	row := a.row(policy.InstanceStatus{Debt: 3 * time.Millisecond, Owed: 2500 * time.Microsecond})
	if row.DebtMS != 3 || row.OwedMS != 2.5 {
		t.Errorf("debt %v ms, owed %v ms", row.DebtMS, row.OwedMS)
	}
}
