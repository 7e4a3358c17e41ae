package online

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. The first word of a line is an event; the indented line after it
// is the decision of the scheduler.
//
//	dilu 2x4 40             a scheduler, nodes x GPUs, GiB of each
//	place a-0 2 0.3:0.5 10  instance 0 of function a: GPUs, SMs, GiB
//	llm a-0 2 0.3:0.5 10    the same, of a large model
//	stop a-0
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", play)
}

func play(text string) (string, error) {
	var p *Fleet
	perNode := 1
	return transcript.Lines(text, func(line string) (did []string, err error) {
		words := strings.Fields(line)
		switch words[0] {
		case "place", "llm":
			r, err := parseRequest(words)
			if err != nil {
				return nil, err
			}
			return []string{describe(p.Place(r), perNode)}, nil
		case "stop":
			if !p.Remove(words[1]) {
				return []string{"it does not run"}, nil
			}
			return nil, nil
		}
		var nodes int
		var gib float64
		if _, err := fmt.Sscanf(strings.Join(words[1:], " "), "%dx%d %g", &nodes, &perNode, &gib); err != nil {
			return nil, err
		}
		p = schedulers[words[0]](devices(nodes, perNode, gib))
		return nil, nil
	})
}

var schedulers = map[string]func([]plan.Device) *Fleet{
	"dilu":      func(d []plan.Device) *Fleet { return Dilu(d, DiluDefaults()) },
	"exclusive": Exclusive, "infless": INFless, "fast": FaST,
}

func devices(nodes, perNode int, gib float64) []plan.Device {
	var out []plan.Device
	for n := range nodes {
		for g := range perNode {
			out = append(out, plan.Device{Node: fmt.Sprintf("node%d", n), Index: g, MemMiB: gib * 1024})
		}
	}
	return out
}

func parseRequest(words []string) (r Request, err error) {
	r = Request{Instance: words[1], Large: words[0] == "llm"}
	r.Function, _, _ = strings.Cut(words[1], "-")
	if r.GPUs, err = strconv.Atoi(words[2]); err != nil {
		return r, err
	}
	if r.SMRequest, r.SMLimit, err = gpu.ParseQuota(words[3]); err != nil {
		return r, err
	}
	gib, err := strconv.ParseFloat(words[4], 64)
	r.Mem = gpu.FromMiB(gib * 1024)
	return r, err
}

func describe(d Decision, perNode int) string {
	if len(d.GPUs) == 0 {
		return "rejected: " + d.Reason.String()
	}
	var names []string
	for _, g := range d.GPUs {
		names = append(names, fmt.Sprintf("node%d/%d", g/perNode, g%perNode))
	}
	return fmt.Sprintf("%s (%d new): %s", strings.Join(names, " "), d.NewGPUs, d.Reason)
}
