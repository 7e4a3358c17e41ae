package report

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/page"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Outlook is what the planner makes of functions on one model of GPU.
type Outlook struct {
	Plans []plan.Plan // one a demand; none when there is nothing to plan
	Alone []int       // of several functions: GPUs that each demand takes when none shares a GPU with another; nil if not known
	Again string      // the shell command that makes the first plan
}

// several says that it is of more than one function.
func (o Outlook) several() bool { return len(o.Plans[0].Demand) > 1 }

// Fleet is several functions planned together.
type Fleet struct {
	GPU     string
	Without []string // functions that no configuration of the profile will do for
	Outlook
}

// title names the fleet by how many functions it has.
func (f Fleet) title() string {
	title := fmt.Sprintf("All %d functions together", len(f.Plans[0].Demand))
	if f.GPU != "" {
		title += " on " + f.GPU
	}
	return title
}

// notes are what to know about a fleet.
func (f Fleet) notes() (out []string) {
	alone := make([]string, len(f.Alone))
	for i, n := range f.Alone {
		alone[i] = number.Plain(float64(n))
	}
	if apart := strings.Join(alone, ", "); f.Alone != nil && apart != f.gpus() {
		out = append(out, fmt.Sprintf("Together they take %s GPUs; each on GPUs of its own, %s.", f.gpus(), apart))
	}
	if len(f.Without) > 0 {
		out = append(out, "Without "+strings.Join(f.Without, ", ")+": no configuration meets the objective.")
	}
	return out
}

// gpus are those of each plan.
func (o Outlook) gpus() string {
	texts := make([]string, len(o.Plans))
	for i, p := range o.Plans {
		texts[i] = number.Plain(float64(p.GPUsUsed))
	}
	return strings.Join(texts, ", ")
}

// head names the columns of a table of plans.
func (o Outlook) head() []string {
	head := []string{"RPS", "GPUS", "AT LEAST", "IN USE"}
	if o.Alone != nil {
		head = slices.Insert(head, 3, "NOT SHARED")
	}
	if o.several() {
		return head
	}
	return append(head, "CONFIGURATIONS")
}

// line is a plan's line of the table.
func (o Outlook) line(i int) []string {
	p := o.Plans[i]
	used, wanted := 0.0, 0.0
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			used += in.SMPct / 100 * in.QuotaRequest
		}
	}
	for _, d := range p.Demand {
		wanted += d.RPS
	}
	row := []string{number.Metric(wanted), number.Plain(float64(p.GPUsUsed)), number.Plain(float64(p.Bound)), number.Percent(used/float64(max(1, p.GPUsUsed)), 0)}
	if o.Alone != nil {
		row = slices.Insert(row, 3, number.Plain(float64(o.Alone[i])))
	}
	if o.several() {
		return row
	}
	return append(row, mix(p)[p.Demand[0].Function])
}

// mix says for each function how many instances of which configurations the
// plan has, most of them first.
func mix(p plan.Plan) map[string]string {
	type config struct {
		sm, quota float64
		batch     int
	}
	order, counts, seen := map[string][]config{}, map[string]map[config]int{}, map[string]bool{}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			if seen[in.ID] { // an instance may span GPUs
				continue
			}
			seen[in.ID] = true
			c := config{in.SMPct, in.QuotaRequest, in.Batch}
			if counts[in.Function] == nil {
				counts[in.Function] = map[config]int{}
			}
			if counts[in.Function][c] == 0 {
				order[in.Function] = append(order[in.Function], c)
			}
			counts[in.Function][c]++
		}
	}
	out := map[string]string{}
	for name, configs := range order {
		slices.SortStableFunc(configs, func(a, b config) int { return cmp.Compare(counts[name][b], counts[name][a]) })
		var parts []string
		for _, c := range configs {
			parts = append(parts, fmt.Sprintf("%d × (sm %s, quota %s, batch %d)", counts[name][c], number.Plain(c.sm), number.Plain(c.quota), c.batch))
		}
		out[name] = strings.Join(parts, ", ")
	}
	return out
}

// unplaced are the reasons why something of the last demand is not served.
func (o Outlook) unplaced() (out []string) {
	for _, u := range o.Plans[len(o.Plans)-1].Unplaced {
		out = append(out, fmt.Sprintf("%s requests/s of %s are not served: %s.", number.Metric(u.RPS), u.Function, u.Reason))
	}
	return out
}

const (
	gpuSide  = 250 // of the picture of a GPU, in pixels
	mostGPUs = 3   // that are drawn of several functions
)

// outlookView is what the page shows of an outlook: its plans and, of the last,
// the functions, what is not served, and the GPUs that most look like.
type outlookView struct {
	Table     page.Table
	Functions *page.Table // nil of one function
	Unserved  []string
	Again     string
	Pictures  []pictureView
}

type pictureView struct {
	Picture template.HTML
	Count   int
	Of      string
}

func (o Outlook) view() outlookView {
	last, most := o.Plans[len(o.Plans)-1], 1
	v := outlookView{Table: page.Table{Head: o.head()}, Unserved: o.unplaced(), Again: o.Again}
	for i := range o.Plans {
		var row []any
		for _, cell := range o.line(i) {
			row = append(row, cell)
		}
		v.Table.Rows = append(v.Table.Rows, row)
	}
	if o.several() {
		most = mostGPUs
		v.Functions = &page.Table{Head: []string{"", "FUNCTION", "RPS", "CONFIGURATIONS"}}
		configs := mix(last)
		for i, d := range last.Demand {
			v.Functions.Rows = append(v.Functions.Rows, []any{template.HTML(picture.Swatch(i)), d.Function, number.Metric(d.RPS), configs[d.Function]})
		}
	}
	looks := picture.Looks(last)
	for _, look := range looks[:min(most, len(looks))] {
		v.Pictures = append(v.Pictures, pictureView{template.HTML(picture.GPU(last, look.GPU, gpuSide)), look.Count, cli.Count(last.GPUsUsed, "GPU")})
	}
	return v
}

// terminal prints the plans.
func (o Outlook) terminal(b *strings.Builder) {
	rows := [][]string{o.head()}
	for i := range o.Plans {
		rows = append(rows, o.line(i))
	}
	columns(b, rows)
	if last := o.Plans[len(o.Plans)-1]; o.several() {
		configs := mix(last)
		rows = [][]string{{"FUNCTION", "RPS", "CONFIGURATIONS OF THE LAST PLAN"}}
		for _, d := range last.Demand {
			rows = append(rows, []string{d.Function, number.Metric(d.RPS), configs[d.Function]})
		}
		b.WriteByte('\n')
		columns(b, rows)
	}
	for _, text := range o.unplaced() {
		fmt.Fprintf(b, "  %s\n", text)
	}
}

// columns prints rows under each other; the last column is left.
func columns(b *strings.Builder, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for k, cell := range row {
			width[k] = max(width[k], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		line := " "
		for k, cell := range row {
			pad := strings.Repeat(" ", width[k]-len([]rune(cell)))
			if k == len(row)-1 || rows[0][k] == "FUNCTION" {
				line += " " + cell + pad + " "
			} else {
				line += " " + pad + cell + " "
			}
		}
		fmt.Fprintln(b, strings.TrimRight(line, " "))
	}
}
