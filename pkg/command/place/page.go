package place

import (
	"cmp"
	_ "embed" // the page
	"html/template"
	"io"
	"slices"
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
	pictureSide  = 262 // of a GPU on the page, in pixels
	maxOpenLines = 40  // largest length of a table that is shown open
)

// pageTable is a table of the page with introductory words.
type pageTable struct {
	Title, Words string
	page.Table
}

// Open reports whether the page shows the table open.
func (t pageTable) Open() bool { return len(t.Rows) <= maxOpenLines }

// tables returns the tables of a plan for its page.
func (o *planOptions) tables(p plan.Plan, rows []profile.Row, changes []diff.Change) (out []pageTable) {
	add := func(title, words string, rows [][]string) {
		if len(rows) > 1 {
			out = append(out, pageTable{title, words, page.TableOf(rows)})
		}
	}
	place, load := "", ""
	if p.Model == plan.ModelRect {
		place = " X and y are the lower left corner of its rectangle: a fraction of the window and a percentage of the SMs."
	}
	if p.Arrivals == plan.ArrivalsPoisson {
		load = ", and the fraction of the time in which it works at this rate (load)"
	}
	add("Instances", "Each row is an instance, with its GPU, its share of the SMs (SM%), its fraction of each scheduling window (quota), the number of requests that it processes at once (batch), the requests/s that the plan assigns to it (rps)"+load+"."+place,
		instanceTable(p, rows))
	gpus := gpuTable(p)
	for i, name := range gpus[0] {
		gpus[0][i] = cmp.Or(allocations[name], name)
	}
	add("GPUs", "The parts of each GPU's SM time and memory that are allocated to instances, and the free part of the SM time.", gpus)
	if o.current.path != "" {
		add("Changes", "The instances that stop, start and stay, compared with the running plan: "+totals(changes)+".", changeTable(changes))
	}
	return out
}

// allocations maps columns of the GPU table to clearer names on the page: they contain allocations, not
// use.
var allocations = map[string]string{"USED": "ALLOCATED", "WASTE": "FREE", "MEM USED MIB": "MEM ALLOCATED MIB"}

// writePage writes a plan as a self-contained HTML page. The same plan gives the same bytes.
func writePage(w io.Writer, p plan.Plan, tables []pageTable, summary string, notes []string) error {
	view := struct {
		Headline, Summary, Reading string
		Unplaced                   []plan.Unplaced
		Notes                      []string
		Functions                  page.Table
		Pictures                   []picture.Panel
		Tables                     []pageTable
		Filter                     bool // the page has an input that filters rows
	}{Headline: picture.Headline(p), Summary: summary, Reading: picture.Footnote(p), Unplaced: p.Unplaced, Notes: notes,
		Functions: picture.Marked(functionTable(p)), Tables: tables, Pictures: picture.Panels(p, pictureSide)}
	view.Filter = slices.ContainsFunc(append(tables, pageTable{Table: view.Functions}), func(t pageTable) bool { return !t.Open() })
	var text strings.Builder
	if err := pages.ExecuteTemplate(&text, "page", view); err != nil {
		return err
	}
	_, err := io.WriteString(w, text.String())
	return err
}
