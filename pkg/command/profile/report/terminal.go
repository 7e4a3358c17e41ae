package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	barWidth = 40
	blocks   = " ▏▎▍▌▋▊▉█"
)

// Terminal returns the report as text: for each section the choice; for each batch size, at the chosen quota,
// the throughput, latency and a bar of efficacy by SM share; and the plans.
func (p Page) Terminal() []byte {
	var b strings.Builder
	if p.Simulated {
		b.WriteString("These figures were measured on the simulated GPU. They do not describe a real GPU.\n\n")
	}
	for i, s := range p.Sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.terminal(&b)
	}
	for _, f := range p.Shared {
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
	highest := 0.0
	for _, r := range s.Rows {
		if r.Quota == quota {
			highest = max(highest, r.Efficacy())
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
			fmt.Fprintf(b, "  %5s %9s %9s  %s %s%s\n", number.Plain(sm), number.Metric(r.ThroughputRPS), number.Metric(r.P95MS), Bar(r.Efficacy()/highest), number.Metric(r.Efficacy()), mark)
		}
	}
	if len(s.Plans) > 0 {
		b.WriteString("\n  Plans for this function:\n")
		s.Outlook.terminal(b)
	}
}

// Bar returns a bar of the given fraction of the full width, in steps of an eighth of a character.
func Bar(fraction float64) string {
	if math.IsNaN(fraction) {
		fraction = 0
	}
	eighths := int(math.Round(fraction * barWidth * 8))
	letters := []rune(blocks)
	bar := strings.Repeat("█", eighths/8)
	if remainder := eighths % 8; remainder > 0 {
		bar += string(letters[remainder])
	}
	return bar
}
