package demand

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// A list may be longer than the name of a file can be.
func TestLongList(t *testing.T) {
	var parts []string
	for i := range 100 {
		parts = append(parts, fmt.Sprintf("a-function-%d=%d", i, i+1))
	}
	d, err := Load(&cli.Env{}, strings.Join(parts, ","))
	if err != nil || len(d) != 100 || d[99].RPS != 100 {
		t.Errorf("%d demands, %v", len(d), err)
	}
}
