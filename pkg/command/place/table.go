package place

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// records returns the instances of a plan as CSV records. The column gpu_model is present if the model
// of any GPU is known, and sm_limit_pct if any instance has an SM limit.
func records(p plan.Plan) [][]string {
	rows := [][]string{{"node", "gpu", "id", "function", "sm_pct", "quota_request", "quota_limit", "batch", "rps", "mem_mib", "x", "y"}}
	known := slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool { return g.Model != "" })
	if known {
		rows[0] = append(rows[0], "gpu_model")
	}
	limited := slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool {
		return slices.ContainsFunc(g.Instances, func(in plan.Instance) bool { return in.SMLimitPct > in.SMPct })
	})
	if limited {
		rows[0] = append(rows[0], "sm_limit_pct")
	}
	n := csvfile.Format
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			row := []string{g.Node, strconv.Itoa(g.Index), in.ID, in.Function, n(in.SMPct), n(in.QuotaRequest), n(in.QuotaLimit),
				strconv.Itoa(in.Batch), n(in.RPS), n(in.MemMiB), optional(in.X, n), optional(in.Y, n)}
			if known {
				row = append(row, g.Model)
			}
			if limited {
				row = append(row, n(max(in.SMPct, in.SMLimitPct)))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// optional formats a value with print, or returns an empty string if it is nil.
func optional(v *float64, print func(float64) string) string {
	if v == nil {
		return ""
	}
	return print(*v)
}

// printTable prints a plan for people: its instances (with their load if requests arrive at random),
// its GPUs, its functions, a summary with the lower bound, the sentence about steady arrivals (see
// steadyArrivalsNote), and the unplaced demand.
func printTable(w io.Writer, p plan.Plan, profiled []profile.Row, steadyArrivals string) error {
	unplaced := cli.Rows(p.Unplaced, func(u plan.Unplaced) []cli.Cell {
		return []cli.Cell{{"UNPLACED", u.Function}, {"RPS", number.Short(u.RPS)}, {"REASON", u.Reason}}
	})
	return printReport(w, summary(p)+steadyArrivals, unplaced, instanceTable(p, profiled), gpuTable(p), functionTable(p))
}

// printReport prints tables, a summary and a table of what is unplaced, with blank lines between them.
// It leaves out tables without rows.
func printReport(w io.Writer, summary string, unplaced [][]string, tables ...[][]string) error {
	var text bytes.Buffer
	for _, rows := range tables {
		if len(rows) == 1 {
			continue
		}
		if err := cli.Table(&text, rows); err != nil {
			return err
		}
		text.WriteString("\n")
	}
	text.WriteString(summary + "\n")
	if len(unplaced) > 1 {
		text.WriteString("\n")
		if err := cli.Table(&text, unplaced); err != nil {
			return err
		}
	}
	_, err := text.WriteTo(w)
	return err
}

func instanceTable(p plan.Plan, profiled []profile.Row) [][]string {
	rows := [][]string{{"GPU", "INSTANCE", "FUNCTION", "SM%", "QUOTA", "BATCH", "RPS", "LOAD", "MEM MIB", "X", "Y"}}
	const loadAt = 7
	load := loads(p, profiled)
	n := number.Short
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			rows = append(rows, []string{g.Name().String(), in.ID, in.Function, number.Range(in.SMPct, in.SMLimitPct), number.Range(in.QuotaRequest, in.QuotaLimit),
				strconv.Itoa(in.Batch), n(in.RPS), load(g, in), size(in.MemMiB), optional(in.X, n), optional(in.Y, n)})
		}
	}
	if p.Arrivals != plan.ArrivalsPoisson {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], loadAt, loadAt+1)
		}
	}
	return rows
}

// loads returns a function that formats the expected load of an instance: the fraction of its
// throughput that the demand uses. The load is empty if the GPU's model is unknown and the profile has
// several.
func loads(p plan.Plan, rows []profile.Row) func(plan.GPU, plan.Instance) string {
	profiled, demanded := profile.NewIndex(rows), map[string]float64{}
	for _, d := range p.Demand {
		if d.ServedRPS > 0 {
			demanded[d.Function] = min(d.RPS/d.ServedRPS, 1)
		}
	}
	return func(g plan.GPU, in plan.Instance) string {
		row, _, err := profiled.Find(in.Function, in.Config(), g.Model)
		if err != nil || row.ThroughputRPS <= 0 {
			return ""
		}
		return number.Percent(in.RPS*demanded[in.Function]/row.ThroughputRPS, 0)
	}
}

func gpuTable(p plan.Plan) [][]string {
	rows := [][]string{{"GPU", "INSTANCES", "USED", "WASTE", "MEM USED MIB", "MEM MIB"}}
	shared := slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool { return len(g.Models) > 0 })
	if shared {
		rows[0] = append(rows[0], "SHARED WEIGHTS")
	}
	several := slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool { return g.Model != p.GPUs[0].Model })
	if several {
		rows[0] = append(rows[0], "MODEL")
	}
	for _, g := range p.GPUs {
		used, mem := 0.0, 0.0
		for _, in := range g.Instances {
			used += in.SMPct / 100 * in.QuotaRequest
			mem += in.MemMiB
		}
		var weights []string
		for _, m := range g.Models {
			mem += m.MemMiB
			name := m.Name
			if m.Tenant != "" {
				name = m.Tenant + "/" + name
			}
			weights = append(weights, name+" "+number.Short(m.MemMiB))
		}
		waste := math.Round((1-used)*1e6)/1e6 + 0 // no -0
		row := []string{g.Name().String(), strconv.Itoa(len(g.Instances)), number.Percent(used, 1), number.Percent(waste, 1), size(mem), size(g.MemMiB)}
		if shared {
			row = append(row, strings.Join(weights, ", "))
		}
		if several {
			row = append(row, g.Model)
		}
		rows = append(rows, row)
	}
	return rows
}

func functionTable(p plan.Plan) [][]string {
	instances, gpus, seen := map[string]int{}, map[string]float64{}, map[string]bool{}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			if !seen[in.ID] { // count an instance that spans GPUs once
				instances[in.Function]++
			}
			seen[in.ID] = true
			gpus[in.Function] += in.SMPct / 100 * in.QuotaRequest
		}
	}
	rows := [][]string{{"FUNCTION", "RPS", "SERVED", "INSTANCES", "GPUS ALLOCATED"}}
	for _, d := range p.Demand {
		rows = append(rows, []string{d.Function, number.Short(d.RPS), number.Short(d.ServedRPS),
			strconv.Itoa(instances[d.Function]), number.Fixed(gpus[d.Function], 2)})
	}
	return rows
}

// summary returns a sentence about the number of GPUs and the lower bound.
func summary(p plan.Plan) string {
	if p.Bound == 0 && p.GPUsUsed == 0 && len(p.Unplaced) > 0 {
		return "0 GPUs used: no part of the demand can be placed."
	}
	best := ""
	if p.GPUsUsed == p.Bound && len(p.Unplaced) == 0 {
		best = ": no plan uses fewer"
	} else if len(p.Unplaced) > 0 && p.Bound > p.GPUsUsed && slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool { return g.MemMiB != p.GPUs[0].MemMiB }) {
		best = ", if further GPUs have as much memory as the largest of the inventory"
	}
	return boundSentence("GPU", p.GPUsUsed, p.Bound, p.BoundMethod, best)
}

// boundSentence returns a sentence about the numbers of used and needed things, with their gap or, if
// there is none, the text best.
func boundSentence(noun string, used, bound int, method, best string) string {
	if gap := used - bound; gap > 0 {
		best = fmt.Sprintf(": gap at most %d, %s", gap, number.Percent(float64(gap)/float64(max(1, bound)), 1))
	}
	return fmt.Sprintf("%s used; at least %d needed (%s bound)%s.", number.Count(used, noun), bound, method, best)
}

// size formats memory in MiB, or "-" if it is unlimited.
func size(mib float64) string {
	if mib == 0 {
		return "-"
	}
	return number.Short(mib)
}
