package cli

import (
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/policy"
)

// Entry is a row of a list in a command's help.
type Entry struct{ Name, Help string }

// Entries formats a list for a command's help: names in one column and their help, wrapped
// at 80 columns, in another. It ends with a line feed.
func Entries(all []Entry) string {
	const columns = 80
	indent := 0
	for _, e := range all {
		indent = max(indent, len(e.Name)+4)
	}
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "  %-*s", indent-2, e.Name)
		at := indent
		for i, word := range strings.Fields(e.Help) {
			switch {
			case i == 0:
			case at+1+len(word) > columns:
				b.WriteString("\n" + strings.Repeat(" ", indent))
				at = indent
			default:
				b.WriteByte(' ')
				at++
			}
			b.WriteString(word)
			at += len(word)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Parameters formats the parameters of a policy for its entry; empty if there are none.
func Parameters[T any](all []policy.Parameter[T]) string {
	var parts []string
	for _, p := range all {
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", p.Key, p.Default, p.Help))
	}
	if len(parts) == 0 {
		return ""
	}
	return " Parameters: " + strings.Join(parts, ", ") + "."
}
