package figure

import (
	"math"
	"strings"
)

// NeedsReason is the difference from a published figure, as a fraction of it, from which a row
// needs a reason.
const NeedsReason = 0.1

// Explained reports whether the row has a reason or needs none.
func (r Row) Explained() bool {
	return r.Reason != "" || math.Abs(r.Theirs.Difference(r.Ours)) <= NeedsReason
}

// Markdown returns a table of the rows with the reasons for differences. Repeated figures and
// reasons are abbreviated.
func Markdown(rows []Row) string {
	var b strings.Builder
	b.WriteString("| figure | quantity | theirs | ours | reason for a difference |\n|---|---|---|---|---|\n")
	var last Row
	for _, r := range rows {
		figure, reason := r.Figure, r.Reason
		if figure == last.Figure {
			figure = "…"
		}
		if reason != "" && reason == last.Reason {
			reason = "as above"
		}
		theirs := r.Published()
		if theirs == "" {
			theirs = "–"
		}
		for _, cell := range []string{figure, r.Quantity, theirs, r.WithUnit(r.Ours), reason} {
			b.WriteString("| ")
			if cell != "" {
				b.WriteString(strings.ReplaceAll(cell, "|", `\|`) + " ")
			}
		}
		b.WriteString("|\n")
		last = r
	}
	return b.String()
}
