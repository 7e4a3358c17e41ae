package place

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
)

// mpsClients is the number of processes that MPS allows on one GPU (NVIDIA, Multi-Process Service,
// section 2.3.2; 60 since driver 570).
const mpsClients = 48

// instanceOptions holds the flags of plan that concern instances as processes.
type instanceOptions struct {
	maxPerGPU  int       // largest number on one GPU; 0 means no limit
	contextMem gpu.Bytes // memory of the CUDA context of each, in addition to the measured memory
}

func (i *instanceOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&i.maxPerGPU, "max-instances", 0, "limit on the instances on one GPU (default no limit)")
	cli.Memory(f, &i.contextMem, "context-mem", "memory of each instance's context, as a `size` like 300MiB, if the profile does not include it")
}

func (i *instanceOptions) check(cmd *cobra.Command) error {
	switch given := cmd.Flags().Changed; {
	case given("max-instances") && i.maxPerGPU < 1:
		return cli.Usagef("--max-instances %d: expected 1 or more", i.maxPerGPU)
	case given("max-instances") && given("current"):
		return cli.Usagef("--max-instances cannot be used with --current")
	}
	return nil
}

// noteCrowded prints a note with the GPUs that have more instances than MPS allows, unless
// --max-instances was given.
func (i *instanceOptions) noteCrowded(env *cli.Env, p plan.Plan) {
	if i.maxPerGPU > 0 {
		return
	}
	crowded := lists.Filter(p.GPUs, func(g plan.GPU) bool { return len(g.Instances) > mpsClients })
	names := lists.Map(crowded, func(g plan.GPU) string { return g.Name().String() })
	if len(names) > 0 {
		env.Notef("note: more than %d instances on %s, but MPS allows %[1]d processes on a GPU (60 with newer drivers); --max-instances %[3]d limits them in the plan", mpsClients, planning.List(names), mpsClients)
	}
}
