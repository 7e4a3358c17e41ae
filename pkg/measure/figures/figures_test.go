package figures

import (
	"errors"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/load"
)

func TestRemarks(t *testing.T) {
	for want, res := range map[string]load.Result{
		"":              {Samples: 10},
		"unstable: why": {Unstable: "why"},
		"3 requests had no answer when the trial ended, 2 of them not yet sent: the load exceeds the capacity": {Errors: 4, Cut: 1, Unsent: 2},
		"4 requests failed, the last with: status 500":                                                         {Errors: 4, LastFailed: errors.New("status 500")},
	} {
		if got := strings.Join(Remarks(res), "; "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
