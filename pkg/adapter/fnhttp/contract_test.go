package fnhttp

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestContractsDocumented checks that docs/gateway.md lists the paths of each contract.
func TestContractsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Contracts\n")
	for _, c := range conventions {
		ready := "`GET " + strings.Join(c.ready, "` or `GET ") + "`"
		row := fmt.Sprintf("\n| `%s` | %s | `POST %s` | ", c.name, ready, c.invoke("NAME"))
		if !strings.Contains(section, row) {
			t.Errorf("docs/gateway.md: no row %q", row)
		}
	}
}
