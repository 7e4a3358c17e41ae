package rollout

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestReconcile checks the action for one wanted instance, depending on the existing
// instance.
func TestReconcile(t *testing.T) {
	want := Assignment{function.Function{Name: "f", Command: []string{"x"}},
		instance.Placement{ID: "f-0", GPUs: []string{"0"}, Slice: gpu.Slice{SMPct: 50, QuotaRequest: 0.5, QuotaLimit: 1}}}
	matching := func() observed {
		r := want.record()
		r.State = instance.Ready
		return observed{r, instance.Ready, &wire.Registration{Instance: "f-0",
			Allocation: wire.Allocation{GPU: "0", SMPct: 50, QuotaRequest: 0.5, QuotaLimit: 1}}}
	}
	job := func(state, command string) observed {
		o := matching()
		o.record.Job, o.record.State, o.state = true, instance.Running, state
		o.record.Definition = launch.Intended(function.Function{Name: "f", Command: []string{command}}, instance.Placement{}).Definition
		return o
	}
	for name, c := range map[string]struct {
		existing func() []observed
		want     string // actions and reasons, or ! and the error
	}{
		"nothing":      {func() []observed { return nil }, "start f-0: "},
		"as wanted":    {func() []observed { return []observed{matching()} }, "keep f-0: "},
		"ended":        {func() []observed { o := matching(); o.state = StateExited; return []observed{o} }, "start f-0: it has exited"},
		"never ready":  {func() []observed { o := matching(); o.state = instance.Starting; return []observed{o} }, "start f-0: it was never ready"},
		"another GPU":  {func() []observed { o := matching(); o.record.GPUs = []string{"1"}; return []observed{o} }, "replace f-0: it is on GPU 1"},
		"unregistered": {func() []observed { o := matching(); o.registered = nil; return []observed{o} }, "replace f-0: it is not registered with the token daemon"},
		"other quota": {func() []observed { o := matching(); o.registered.QuotaLimit = 0.5; return []observed{o} },
			"change f-0: its quota is 0.5:0.5, not 0.5:1"},
		"no SM limit": {func() []observed { o := matching(); o.record.Slice.SMLimitPct = 100; return []observed{o} },
			"replace f-0: it has 50:100% of the SMs, not 50%"},
		"silent runtime":   {func() []observed { o := matching(); o.state = StateUnknown; return []observed{o} }, "!does not answer"},
		"the gateway's":    {func() []observed { o := matching(); o.record.Owner = instance.Gateway; return []observed{o} }, "!the gateway has already started"},
		"a running job":    {func() []observed { return []observed{job(instance.Running, "x")} }, "keep f-0: "},
		"a restarting job": {func() []observed { return []observed{job(instance.Restarting, "x")} }, "keep f-0: "},
		"a complete job":   {func() []observed { o := job(instance.Succeeded, "x"); o.registered = nil; return []observed{o} }, "keep f-0: "},
		"a complete job of another version": {func() []observed { return []observed{job(instance.Succeeded, "y")} },
			"start f-0: its function has changed since it succeeded"},
		"a failed job": {func() []observed { return []observed{job(instance.Failed, "x")} }, "start f-0: it has failed"},
		"others": {func() []observed {
			old, gateways := matching(), matching()
			old.record.ID, gateways.record.ID, gateways.record.Owner = "old-0", "f.1", instance.Gateway
			return []observed{matching(), old, gateways}
		}, "keep f-0: ; stop old-0: it is not in the plan"},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := reconcile([]Assignment{want}, c.existing(), true)
			if text, fails := strings.CutPrefix(c.want, "!"); fails {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%v, want %q", err, text)
				}
				return
			}
			var got []string
			for _, s := range steps {
				got = append(got, s.Action+" "+s.ID+": "+s.Why)
			}
			if text := strings.Join(got, "; "); err != nil || text != c.want {
				t.Errorf("%q, %v, want %q", text, err, c.want)
			}
		})
	}
}
