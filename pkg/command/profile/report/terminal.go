package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	barWide = 40
	blocks  = " ▏▎▍▌▋▊▉█"
)

// Terminal is the report as text: what is chosen and, for each batch at the
// chosen quota, throughput, latency and a bar of efficacy over the SM shares,
// and what the planner makes of it.
func (p Page) Terminal() []byte {
	var b strings.Builder
	if p.Simulated {
		b.WriteString("Measured on the simulated GPU: these figures are not a GPU's.\n\n")
	}
	for i, s := range p.Sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.terminal(&b)
	}
	for _, f := range p.Fleets {
		fmt.Fprintf(&b, "\n%s\n", f.title())
		for _, n := range f.notes() {
			fmt.Fprintln(&b, "  "+n)
		}
		b.WriteByte('\n')
		f.terminal(&b)
	}
	if len(p.Notes) > 0 {
		b.WriteByte('\n')
	}
	for _, n := range p.Notes {
		fmt.Fprintln(&b, n)
	}
	return []byte(b.String())
}

func (s Section) terminal(b *strings.Builder) {
	fmt.Fprintln(b, s.title())
	for _, line := range s.summary() {
		fmt.Fprintln(b, "  "+line)
	}
	quotas, table := s.quotas(), s.table()
	quota := quotas[len(quotas)-1]
	if s.Choice.OK {
		quota = s.Choice.Row.Quota
	}
	most := 0.0
	for _, r := range s.Rows {
		if r.Quota == quota {
			most = max(most, r.Efficacy())
		}
	}
	for _, batch := range s.batches() {
		fmt.Fprintf(b, "\n  batch %s, quota %s\n  %5s %9s %9s  %s\n", number.Plain(batch), number.Plain(quota), "SM%", "RPS", "P95 MS", "RPS/GPU (! misses the objective, < chosen)")
		for _, sm := range s.sms() {
			r, ok := table[profile.Config{SMPct: sm, Quota: quota, Batch: int(batch)}]
			if !ok {
				continue
			}
			mark := ""
			if !s.Goal.Meets(r) {
				mark = " !"
			}
			if s.Choice.OK && r.Config == s.Choice.Row.Config {
				mark = " <"
			}
			fmt.Fprintf(b, "  %5s %9s %9s  %s %s%s\n", number.Plain(sm), number.Metric(r.ThroughputRPS), number.Metric(r.P95MS), Bar(r.Efficacy()/most), number.Metric(r.Efficacy()), mark)
		}
	}
	if len(s.Plans) > 0 {
		b.WriteString("\n  What the planner makes of it:\n")
		s.Outlook.terminal(b)
	}
}

// Bar is so much of the widest bar, a fraction, in eighths of a letter.
func Bar(part float64) string {
	if math.IsNaN(part) {
		part = 0
	}
	eighths := int(math.Round(part * barWide * 8))
	letters := []rune(blocks)
	out := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		out += string(letters[rest])
	}
	return out
}
