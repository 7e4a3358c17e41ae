package manifest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
)

// TestMemoryFits checks that the whole MiB of the instances on a GPU do not exceed its memory if the plan's
// values do not, and that they are rounded up if there is room.
func TestMemoryFits(t *testing.T) {
	const lost, full = "lost: a fraction of a MiB of mem_mib of ", "sums to more than the GPU has"
	for _, c := range []struct {
		name    string
		gpu     float64
		mem     []float64
		want    []int64
		warning string
	}{
		{"exact", 1000, []float64{333.3, 333.3, 333.4}, []int64{333, 333, 334}, lost + "2 instances"},
		{"the least lose", 100, []float64{10.9, 20.2, 30.5, 38.4}, []int64{11, 20, 31, 38}, lost + "2 instances"},
		{"with room", 1001, []float64{333.3, 333.3, 332.3}, []int64{334, 334, 333}, ""},
		{"whole", 1000, []float64{500, 500}, []int64{500, 500}, ""},
		{"a GPU of part of a MiB", 100.5, []float64{50.25, 50.25}, []int64{50, 50}, lost + "2 instances"},
		{"none is 0", 1, []float64{0.1, 0.2, 0.7}, []int64{1, 1, 1}, "of instances on 1 GPU " + full},
		{"no limit", 0, []float64{0.5, 10.5}, []int64{1, 11}, ""},
		{"more than there is", 100, []float64{60.5, 60.5}, []int64{61, 61}, "of instances on 1 GPU " + full},
		{"as floats sum", 0.3 * 10, []float64{0.1 + 0.2 + 0.7, 1, 1}, []int64{1, 1, 1}, ""},
	} {
		g := plan.GPU{Node: "n", MemMiB: c.gpu}
		for i, mem := range c.mem {
			g.Instances = append(g.Instances, plan.Instance{ID: fmt.Sprintf("f-%d", i), Function: "f", SMPct: 10, QuotaRequest: 1, QuotaLimit: 1, Batch: 1, MemMiB: mem})
		}
		for format, of := range map[string]func(plan.Plan, Options) (Manifest, error){`gpumem: "(\d+)"`: HAMi, `memory: (\d+)Mi`: DRA} {
			m, err := of(plan.Plan{GPUs: []plan.GPU{g}}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, found := range regexp.MustCompile(format).FindAllStringSubmatch(string(m.Text), -1) {
				n, _ := strconv.ParseInt(found[1], 10, 64)
				got = append(got, n)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%s: memory requests of %v MiB on %v: got %v, want %v", c.name, c.mem, c.gpu, got, c.want)
			}
			warnings := strings.Join(m.Warnings, "\n")
			if !strings.Contains(warnings, c.warning) || c.warning == "" && (strings.Contains(warnings, lost) || strings.Contains(warnings, full)) {
				t.Errorf("%s: got the warnings\n%s\nwant %q", c.name, warnings, c.warning)
			}
		}
	}
}

// TestMemoryOfSpans checks that an instance on several GPUs requests the same memory on each, and fits all.
func TestMemoryOfSpans(t *testing.T) {
	both := plan.Instance{ID: "b-0", Function: "b", SMPct: 10, QuotaRequest: 1, QuotaLimit: 1, Batch: 1, MemMiB: 50.5}
	one := plan.Instance{ID: "a-0", Function: "a", SMPct: 10, QuotaRequest: 1, QuotaLimit: 1, Batch: 1, MemMiB: 20}
	p := plan.Plan{GPUs: []plan.GPU{
		{Node: "n", MemMiB: 100, Instances: []plan.Instance{both}},
		{Node: "n", Index: 1, MemMiB: 70.5, Instances: []plan.Instance{one, both}},
	}}
	list, err := workloads(p, Options{Functions: []function.Function{{Name: "a", Image: "a", GPUMem: 20 * gpu.MiB}, {Name: "b", Image: "b", GPUs: 2}}})
	if err != nil || list[0].mem != 50 || list[1].mem != 20 || list[0].roundedUp() != 51 {
		t.Errorf("workloads: got %+v, %v; want 50 MiB for the first, rounded up to 51 where there is room, and 20 MiB for the second", list, err)
	}
}
