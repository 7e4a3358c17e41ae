package picture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/plan"
)

var update = flag.Bool("update", false, "write the golden files anew; look at them afterwards")

// rect is the slice of an instance: its SM share in percent, its quota, and its place.
type rect struct {
	sm    float64
	quota float64
	x     float64
	y     float64
}

func instance(function string, n int, r rect) plan.Instance {
	return plan.Instance{ID: fmt.Sprintf("%s-%d", function, n), Function: function, SMPct: r.sm, QuotaRequest: r.quota, QuotaLimit: r.quota,
		Batch: 1, RPS: 10, MemMiB: 1024, X: &r.x, Y: &r.y}
}

// example returns a plan with the paper's GPU, a GPU of narrow instances, and an unplaced function.
func example() plan.Plan {
	sliver := plan.GPU{Node: "node1", Index: 3, MemMiB: 16384}
	for i := range 20 {
		sliver.Instances = append(sliver.Instances, instance("resnet", 10+i, rect{sm: 5, quota: 0.1, x: 0.1 * float64(i%10), y: 5 * float64(i/10)}))
	}
	sliver.Instances = append(sliver.Instances, instance("a-function-with-a-long-name", 0, rect{sm: 90, quota: 0.2, y: 10}))
	return plan.Plan{
		Version: 1, Algorithm: "fast", Model: plan.ModelRect, GPUsUsed: 2, Bound: 2, BoundMethod: "area",
		GPUs: []plan.GPU{{Node: "node0", Instances: []plan.Instance{
			instance("bert", 0, rect{sm: 50, quota: 0.6}), instance("bert", 1, rect{sm: 50, quota: 0.6, y: 50}),
			instance("rnnt", 0, rect{sm: 24, quota: 0.4, x: 0.6}), instance("resnet", 0, rect{sm: 12, quota: 0.4, x: 0.6, y: 24}),
		}}, sliver},
		Demand: []plan.Served{{Function: "resnet", RPS: 200, ServedRPS: 210}, {Function: "rnnt", RPS: 9.5, ServedRPS: 10},
			{Function: "bert", RPS: 20, ServedRPS: 20}, {Function: "a-function-with-a-long-name", RPS: 30, ServedRPS: 10}},
		Unplaced: []plan.Unplaced{{Function: "a-function-with-a-long-name", RPS: 20,
			Reason: "no configuration has p95_ms <= 5 & <this> is \"quoted\": the best is 11.3 at sm_pct 100, quota 1, batch 1 and so on over the edge of the page"}},
	}
}

// fleet returns a plan with many GPUs, half of which look the same, and with more functions than colours.
func fleet() plan.Plan {
	p := plan.Plan{Version: 1, Algorithm: "fast", Model: plan.ModelRect, GPUsUsed: 60, Bound: 50, BoundMethod: "memory"}
	for i := range 60 {
		p.GPUs = append(p.GPUs, plan.GPU{Node: "n", Index: i, Instances: []plan.Instance{instance(fmt.Sprintf("f%d", max(0, i-29)), i, rect{sm: 50, quota: 1})}})
	}
	return p
}

func TestGolden(t *testing.T) {
	for name, p := range map[string]plan.Plan{"example": example(), "empty": {BoundMethod: "area"}, "fleet": fleet(), "tokens": tokens()} {
		t.Run(name, func(t *testing.T) {
			got := SVG(p)
			checkXML(t, got)
			path := "testdata/" + name + ".svg"
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from the output, want the same; regenerate it with go test -update", path)
			}
		})
	}
}

// checkXML fails the test unless the picture is well-formed XML.
func checkXML(t *testing.T, svg []byte) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryInstanceIsDrawn(t *testing.T) {
	svg := string(SVG(example()))
	for _, g := range example().GPUs {
		for _, in := range g.Instances {
			if !strings.Contains(svg, "<title>"+in.ID+":") {
				t.Errorf("the picture does not show %s, want every instance", in.ID)
			}
		}
	}
}

func TestEqualGPUsAreDrawnOnce(t *testing.T) {
	svg := string(SVG(fleet()))
	if !strings.Contains(svg, "30 GPUs like this") || strings.Count(svg, "<title>") != 31 {
		t.Errorf("got %d instances, want 31, and a note about the 30 equal GPUs", strings.Count(svg, "<title>"))
	}
}
