package place

import (
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

// records are the instances of a plan, one a line: the form csv. The column gpu_model is
// there if the model of a GPU is known.
func records(p plan.Plan) [][]string {
	rows := [][]string{{"node", "gpu", "id", "function", "sm_pct", "quota_request", "quota_limit", "batch", "rps", "mem_mib", "x", "y"}}
	known := slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool { return g.Model != "" })
	if known {
		rows[0] = append(rows[0], "gpu_model")
	}
	n := csvfile.Format
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			row := []string{g.Node, strconv.Itoa(g.Index), in.ID, in.Function, n(in.SMPct), n(in.QuotaRequest), n(in.QuotaLimit),
				strconv.Itoa(in.Batch), n(in.RPS), n(in.MemMiB), optional(in.X, n), optional(in.Y, n)}
			if known {
				row = append(row, g.Model)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// optional prints a figure that a plan may not have.
func optional(v *float64, print func(float64) string) string {
	if v == nil {
		return ""
	}
	return print(*v)
}

// printTable prints a plan for people: its instances and, where requests come at
// random, how much of their time they will work, its GPUs, its functions, how near
// it is to the best possible, what even arrivals would have taken, and what is
// missing.
func printTable(w io.Writer, p plan.Plan, profiled []profile.Row, even string) error {
	tables := [][][]string{instanceTable(p, profiled), gpuTable(p), functionTable(p)}
	for _, rows := range tables {
		if len(rows) == 1 {
			continue
		}
		if err := cli.Table(w, rows); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w, summary(p)+even); err != nil {
		return err
	}
	if len(p.Unplaced) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	rows := [][]string{{"UNPLACED", "RPS", "REASON"}}
	for _, u := range p.Unplaced {
		rows = append(rows, []string{u.Function, number.Short(u.RPS), u.Reason})
	}
	return cli.Table(w, rows)
}

func instanceTable(p plan.Plan, profiled []profile.Row) [][]string {
	rows := [][]string{{"GPU", "INSTANCE", "FUNCTION", "SM%", "QUOTA", "BATCH", "RPS", "LOAD", "MEM MIB", "X", "Y"}}
	const loadAt = 7
	load := loads(p, profiled)
	n := number.Short
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			rows = append(rows, []string{gpuName(g), in.ID, in.Function, n(in.SMPct), n(in.QuotaRequest),
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

// loads says what part of its time, as its throughput tells, an instance will work
// when its function gets what is demanded: nothing where its GPU's model is not known
// and the profile has several.
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
		rows[0] = append(rows[0], "OF IT SHARED WEIGHTS")
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
		row := []string{gpuName(g), strconv.Itoa(len(g.Instances)), number.Percent(used, 1), number.Percent(waste, 1), size(mem), size(g.MemMiB)}
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
			if !seen[in.ID] { // an instance may span GPUs
				instances[in.Function]++
			}
			seen[in.ID] = true
			gpus[in.Function] += in.SMPct / 100 * in.QuotaRequest
		}
	}
	rows := [][]string{{"FUNCTION", "RPS", "SERVED", "INSTANCES", "GPUS' WORTH"}}
	for _, d := range p.Demand {
		rows = append(rows, []string{d.Function, number.Short(d.RPS), number.Short(d.ServedRPS),
			strconv.Itoa(instances[d.Function]), number.Fixed(gpus[d.Function], 2)})
	}
	return rows
}

// summary says in a sentence how many GPUs a plan uses and how many it would
// need at least.
func summary(p plan.Plan) string {
	if p.Bound == 0 && p.GPUsUsed == 0 && len(p.Unplaced) > 0 {
		return "0 GPUs used: nothing of the demand can be placed."
	}
	text := fmt.Sprintf("%s used; at least %d needed (%s bound)", cli.Count(p.GPUsUsed, "GPU"), p.Bound, p.BoundMethod)
	switch gap := p.GPUsUsed - p.Bound; {
	case gap > 0:
		return fmt.Sprintf("%s: gap at most %d, %s.", text, gap, number.Percent(float64(gap)/float64(max(1, p.Bound)), 1))
	case gap == 0 && len(p.Unplaced) == 0:
		return text + ": no plan uses fewer."
	}
	return text + "."
}

func gpuName(g plan.GPU) string { return fmt.Sprintf("%s/%d", g.Node, g.Index) }

// size is memory in MiB; none where memory is not limited.
func size(mib float64) string {
	if mib == 0 {
		return "-"
	}
	return number.Short(mib)
}
