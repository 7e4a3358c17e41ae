package cli

import (
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/policy"
)

// Entry is a row of a list in a command's help.
type Entry struct{ Name, Help string }

// Entries formats a list for a command's help: names in the first column, help texts in the second, which
// wrap at 80 columns. The result ends with a line feed.
func Entries(entries []Entry) string {
	const columns = 80
	indent := 0
	for _, e := range entries {
		indent = max(indent, len(e.Name)+4)
	}
	var b strings.Builder
	for _, e := range entries {
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

// Parameters returns the sentence that lists a policy's parameters in its Entry, or "" if it has none.
func Parameters[T any](parameters []policy.Parameter[T]) string {
	texts := lists.Map(parameters, func(p policy.Parameter[T]) string { return fmt.Sprintf("%s=%s (%s)", p.Key, p.Default, p.Help) })
	if len(texts) == 0 {
		return ""
	}
	return " Parameters: " + strings.Join(texts, ", ") + "."
}
