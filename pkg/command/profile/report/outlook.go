package report

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/page"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Outlook holds the plans for functions on one GPU model.
type Outlook struct {
	Plans        []plan.Plan // one per demand; empty if there is nothing to plan
	UnsharedGPUs []int       // for several functions: GPUs per demand if no GPU is shared; nil if unknown
	PlanCommand  string      // shell command that makes the first plan
}

// several reports whether the plans cover more than one function.
func (o Outlook) several() bool { return len(o.Plans[0].Demand) > 1 }

// SharedOutlook is an outlook for several functions that share GPUs of one model.
type SharedOutlook struct {
	GPU     string   // GPU model; empty if unknown
	Without []string // functions without a usable configuration in the profile
	Outlook
}

// title returns the heading of the outlook, with the number of functions.
func (f SharedOutlook) title() string {
	title := fmt.Sprintf("All %d functions together", len(f.Plans[0].Demand))
	if f.GPU != "" {
		title += " on " + f.GPU
	}
	return title
}

// notes returns notes about the plans, as sentences.
func (f SharedOutlook) notes() (notes []string) {
	if separate := strings.Join(lists.Map(f.UnsharedGPUs, strconv.Itoa), ", "); f.UnsharedGPUs != nil && separate != f.gpus() {
		notes = append(notes, fmt.Sprintf("Together they need %s GPUs; if no GPU is shared by two functions, %s.", f.gpus(), separate))
	}
	if len(f.Without) > 0 {
		notes = append(notes, "Not included: "+strings.Join(f.Without, ", ")+". No configuration meets the objective.")
	}
	return notes
}

// gpus returns the number of GPUs in each plan, separated by commas.
func (o Outlook) gpus() string {
	return strings.Join(lists.Map(o.Plans, func(p plan.Plan) string { return strconv.Itoa(p.GPUsUsed) }), ", ")
}

// columnNames returns the column names of the table of plans.
func (o Outlook) columnNames() []string {
	head := []string{"RPS", "GPUS", "BOUND", "ALLOCATED"}
	if o.UnsharedGPUs != nil {
		head = slices.Insert(head, 3, "UNSHARED")
	}
	if o.several() {
		return head
	}
	return append(head, "CONFIGURATIONS")
}

// table returns a table with a row for each plan.
func (o Outlook) table() [][]string {
	rows := [][]string{o.columnNames()}
	for i := range o.Plans {
		rows = append(rows, o.row(i))
	}
	return rows
}

// functions returns a table of the functions in the last plan. The last column has the given heading.
func (o Outlook) functions(heading string) [][]string {
	last := o.Plans[len(o.Plans)-1]
	configs := configurations(last)
	return cli.Rows(last.Demand, func(d plan.Served) []cli.Cell {
		return []cli.Cell{{"FUNCTION", d.Function}, {"RPS", number.Metric(d.RPS)}, {heading, configs[d.Function]}}
	})
}

// row returns the table row of the i-th plan.
func (o Outlook) row(i int) []string {
	p := o.Plans[i]
	used, demand := 0.0, 0.0
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			used += in.SMPct / 100 * in.QuotaRequest
		}
	}
	for _, d := range p.Demand {
		demand += d.RPS
	}
	row := []string{number.Metric(demand), number.Plain(float64(p.GPUsUsed)), number.Plain(float64(p.Bound)), number.Percent(used/float64(max(1, p.GPUsUsed)), 0)}
	if o.UnsharedGPUs != nil {
		row = slices.Insert(row, 3, number.Plain(float64(o.UnsharedGPUs[i])))
	}
	if o.several() {
		return row
	}
	return append(row, configurations(p)[p.Demand[0].Function])
}

// configurations describes the instances of each function in a plan: their number per configuration, the
// most frequent configuration first.
func configurations(p plan.Plan) map[string]string {
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
	texts := map[string]string{}
	for name, configs := range order {
		slices.SortStableFunc(configs, func(a, b config) int { return cmp.Compare(counts[name][b], counts[name][a]) })
		counted := lists.Map(configs, func(c config) string {
			return fmt.Sprintf("%d × (sm %s, quota %s, batch %d)", counts[name][c], number.Plain(c.sm), number.Plain(c.quota), c.batch)
		})
		texts[name] = strings.Join(counted, ", ")
	}
	return texts
}

// unplaced returns sentences about the unserved part of the last demand and the reasons.
func (o Outlook) unplaced() []string {
	return lists.Map(o.Plans[len(o.Plans)-1].Unplaced, func(u plan.Unplaced) string {
		return fmt.Sprintf("%s requests/s of %s are not served: %s.", number.Metric(u.RPS), u.Function, u.Reason)
	})
}

const (
	gpuSide     = 250 // side of the picture of a GPU, in pixels
	maxPictures = 3   // most pictures of GPUs for several functions; a single function has one
)

// outlookView is the page's form of an outlook: the table of plans and, for the last plan, its functions,
// the unserved demand, and pictures of the layouts that most of its GPUs have.
type outlookView struct {
	Table       page.Table
	Functions   *page.Table // nil for a single function
	Unserved    []string
	PlanCommand string
	Pictures    []pictureView
}

// pictureView is a picture of a GPU's layout, with the number of GPUs that have this layout.
type pictureView struct {
	Picture template.HTML
	Count   int
	GPUs    string // the number of all GPUs of the plan, as text
}

func (o Outlook) view() outlookView {
	last, pictures := o.Plans[len(o.Plans)-1], 1
	v := outlookView{Table: page.TableOf(o.table()), Unserved: o.unplaced(), PlanCommand: o.PlanCommand}
	if o.several() {
		pictures, v.Functions = maxPictures, new(picture.Marked(o.functions("CONFIGURATIONS")))
	}
	layouts := picture.Layouts(last)
	for _, layout := range layouts[:min(pictures, len(layouts))] {
		v.Pictures = append(v.Pictures, pictureView{template.HTML(picture.GPU(last, layout.GPU, gpuSide)), layout.Count, number.Count(last.GPUsUsed, "GPU")})
	}
	return v
}

// terminal prints the plans as text.
func (o Outlook) terminal(b *strings.Builder) {
	columns(b, o.table())
	if o.several() {
		b.WriteByte('\n')
		columns(b, o.functions("CONFIGURATIONS OF THE LAST PLAN"))
	}
	for _, text := range o.unplaced() {
		fmt.Fprintf(b, "  %s\n", text)
	}
}

// columns prints rows as columns, the first row being the names. It aligns the last column and the column
// FUNCTION, which hold text, to the left, and the others, which hold numbers, to the right.
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
