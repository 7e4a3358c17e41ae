package gfaas

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/rollout"
)

// plannedInstance is an instance of the edited plan.
type plannedInstance struct {
	function string
	sm       int
	quota    float64
	gpu      int
}

// restarted reports whether the change from w to other needs a restart.
func (w plannedInstance) restarted(other plannedInstance) bool {
	return w.function != other.function || w.sm != other.sm || w.gpu != other.gpu
}

// planText returns a plan with the instances.
func planText(all map[string]plannedInstance) string {
	gpus := make([][]string, 2)
	for id, w := range all {
		gpus[w.gpu] = append(gpus[w.gpu], fmt.Sprintf(`{"id":%q,"function":%q,"sm_pct":%d,"quota_request":%v,"quota_limit":%v,"batch":1,"rps":1,"mem_mib":0}`,
			id, w.function, w.sm, w.quota, w.quota))
	}
	var list []string
	for n, instances := range gpus {
		list = append(list, fmt.Sprintf(`{"node":"n","index":%d,"mem_mib":0,"instances":[%s],"schedule":[]}`, n, strings.Join(instances, ",")))
	}
	return `{"version":1,"algorithm":"joint","model":"tokens","gpus_used":2,"bound":1,"bound_method":"area","demand":[],"unplaced":[],"gpus":[` +
		strings.Join(list, ",") + `]}`
}

// edit makes one random change to a plan.
func edit(r *rand.Rand, all map[string]plannedInstance) {
	id := fmt.Sprintf("i-%d", r.IntN(4))
	w, exists := all[id]
	switch {
	case exists && len(all) > 1 && r.IntN(4) == 0:
		delete(all, id)
	case exists && r.IntN(2) == 0:
		w.quota = float64(1+r.IntN(9)) / 100
		all[id] = w
	default:
		all[id] = plannedInstance{function: []string{"f", "g"}[r.IntN(2)], sm: 10 + r.IntN(3), quota: float64(1+r.IntN(9)) / 100, gpu: r.IntN(2)}
	}
}

// TestEdits edits a plan at random and runs gfaas up after each edit, sometimes after another up was killed. The
// running instances must match the plan, and unchanged instances must not restart. GFAAS_EDITS sets the number of
// edits.
func TestEdits(t *testing.T) {
	t.Parallel()
	edits := 12
	if text := os.Getenv("GFAAS_EDITS"); text != "" {
		var err error
		if edits, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	p := newEnvironment(t)
	p.env = append(p.env, "GFAAS_SIM_GPU=count=2")
	p.write("f.yaml", `{name: f, command: ["`+p.getenv("FUNCTION")+`"]}
---
{name: g, command: ["`+p.getenv("FUNCTION")+`"]}
`)
	p.output("apply", "-f", "f.yaml")
	plan, ran := map[string]plannedInstance{}, map[string]plannedInstance{}
	pids := map[string]int{}
	for n := range edits {
		for range 1 + r.IntN(3) {
			edit(r, plan)
		}
		p.write("plan.json", planText(plan))
		killed := n%3 == 2
		if killed {
			up := p.command("up", "--prune", "plan.json")
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond) // kill it at a random moment
			_ = up.Process.Kill()
			_ = up.Wait()
		}
		p.output("up", "--prune", "plan.json")
		var list []rollout.Entry
		if err := json.Unmarshal([]byte(p.output("ps", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != len(plan) {
			t.Fatalf("edit %d: running instances: got %d, want the plan's %d: %+v", n, len(list), len(plan), list)
		}
		next := map[string]int{}
		for _, e := range list {
			w, planned := plan[e.ID]
			device := []string{"sim", "sim:1"}[w.gpu]
			if !planned || e.State != "ready" || e.Function != w.function || e.SMPct != float64(w.sm) || e.QuotaRequest != w.quota || e.QuotaLimit != w.quota || e.GPU != device {
				t.Fatalf("edit %d: instance %s: got %+v, want it ready on %s as %+v (planned: %v)", n, e.ID, e, device, w, planned)
			}
			before, known := ran[e.ID]
			if same := known && !before.restarted(w); same && !killed && e.PID != pids[e.ID] {
				t.Errorf("edit %d: PID of the unchanged instance %s: got %d, want %d; it was %+v and is %+v", n, e.ID, e.PID, pids[e.ID], before, w)
			}
			next[e.ID] = e.PID
		}
		ran = map[string]plannedInstance{}
		for id, w := range plan {
			ran[id] = w
		}
		pids = next
	}
	p.output("down")
	p.checkNothingRemains()
}
