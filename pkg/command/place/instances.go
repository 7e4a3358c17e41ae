package place

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
)

// mpsClients is how many processes MPS lets have one GPU at a time (NVIDIA,
// Multi-Process Service, section 2.3.2; 60 from driver 570 on).
const mpsClients = 48

// instanceOptions are the flags of plan about instances being processes.
type instanceOptions struct {
	most    int       // on a GPU; 0 is no limit
	context gpu.Bytes // that each takes besides what was measured
}

func (i *instanceOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&i.most, "max-instances", 0, "most instances on one GPU, like `48` (default no limit)")
	cli.Memory(f, &i.context, "context-mem", "memory of each instance's context, where the profile's does not hold it, like `300MiB`")
}

func (i *instanceOptions) check(cmd *cobra.Command) error {
	switch given := cmd.Flags().Changed; {
	case given("max-instances") && i.most < 1:
		return cli.Usagef("--max-instances %d: expected 1 or more", i.most)
	case given("max-instances") && given("current"):
		return cli.Usagef("--max-instances plans from nothing: it cannot be used with --current")
	}
	return nil
}

// crowded names the GPUs with more instances than MPS lets have one, where no limit
// was asked for.
func (i *instanceOptions) crowded(env *cli.Env, p plan.Plan) {
	if i.most > 0 {
		return
	}
	var names []string
	for _, g := range p.GPUs {
		if len(g.Instances) > mpsClients {
			names = append(names, gpuName(g))
		}
	}
	if len(names) > 0 {
		env.Notef("note: more than %d instances on %s: MPS lets so many processes have a GPU (60 with newer drivers); --max-instances %d plans for it", mpsClients, planning.List(names), mpsClients)
	}
}
