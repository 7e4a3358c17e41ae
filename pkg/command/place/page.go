package place

import (
	_ "embed" // the page
	"html/template"
	"io"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/page"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
	"github.com/gfaas/gfaas/pkg/profile"
)

//go:embed page.html
var pageText string

var pages = page.Template(pageText, template.FuncMap{
	"definitions": func() template.HTML { return template.HTML(picture.Definitions()) },
})

const (
	pictureSide = 262 // of a GPU on the page, in pixels
	mostLines   = 40  // of a table that is open
)

// pageTable is a table of the page with words before it.
type pageTable struct {
	Title, Words string
	page.Table
}

// Open tells whether the table is short enough to be shown before it is asked for.
func (t pageTable) Open() bool { return len(t.Rows) <= mostLines }

// tables are those of a plan for its page.
func (o *planOptions) tables(p plan.Plan, rows []profile.Row, changes []diff.Change) (out []pageTable) {
	add := func(title, words string, rows [][]string) {
		if len(rows) > 1 {
			out = append(out, pageTable{title, words, page.TableOf(rows)})
		}
	}
	load := ""
	if p.Arrivals == plan.ArrivalsPoisson {
		load = "; load is the part of its time that it then works"
	}
	add("Instances", "Each line is a process: the GPU it is on, the share of that GPU's SMs it has (SM%) for which part of every scheduling window (quota), how many requests it takes at once (batch), and how many a second it is counted on for (rps)"+load+".",
		instanceTable(p, rows))
	add("GPUs", "What instances have of each GPU's SM time, and what nobody has.", gpuTable(p))
	if o.current.path != "" {
		add("Changes", "What stops, starts and is kept, beside the plan that runs: "+totals(changes)+".", changeTable(changes))
	}
	return out
}

// writePage writes a plan as a page that stands alone. The same plan gives the same
// bytes.
func writePage(w io.Writer, p plan.Plan, tables []pageTable, summary string, notes []string) error {
	view := struct {
		Headline, Summary, Reading string
		Unplaced                   []plan.Unplaced
		Notes                      []string
		Functions                  page.Table
		Pictures                   []pagePicture
		Tables                     []pageTable
	}{Headline: picture.Headline(p), Summary: summary, Reading: picture.Footnote(p), Unplaced: p.Unplaced, Notes: notes,
		Functions: page.TableOf(functionTable(p)), Tables: tables}
	view.Functions.Head = append([]string{""}, view.Functions.Head...)
	for i, row := range view.Functions.Rows {
		view.Functions.Rows[i] = append([]any{template.HTML(picture.Swatch(i))}, row...)
	}
	for _, part := range picture.Parts(p, pictureSide) {
		view.Pictures = append(view.Pictures, pagePicture{template.HTML(part.Picture), part.Caption})
	}
	var text strings.Builder
	if err := pages.ExecuteTemplate(&text, "page", view); err != nil {
		return err
	}
	_, err := io.WriteString(w, text.String())
	return err
}

type pagePicture struct {
	Picture template.HTML
	Caption string
}
