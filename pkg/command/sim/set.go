package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

// parameters lists the keys of --set: the parameters of the policies, and of the simulator
// itself.
var parameters = func() []policy.Parameter[sim.Config] {
	list := []policy.Parameter[sim.Config]{
		{Key: "demand", Set: func(c *sim.Config, v string) (err error) { c.Demand, err = queue.ParseShare(v); return err }},
		{Key: "interference", Set: func(c *sim.Config, v string) (err error) { c.Interference, err = csvfile.Number(v); return err }},
	}
	list = append(list,
		policy.Parameter[sim.Config]{Key: "memory", Set: func(c *sim.Config, v string) error {
			if !c.SetMover(v) {
				names := lists.Map(sim.Movers(), func(m sim.Mover) string { return m.Name })
				return fmt.Errorf("%s: expected %s", csvfile.Quote(v), strings.Join(names, ", "))
			}
			return nil
		}},
		policy.Parameter[sim.Config]{Key: "fault", Set: func(c *sim.Config, v string) (err error) {
			if c.Fault, err = csvfile.Number(v); err == nil && (c.Fault < 1 || c.Fault > 1e6) {
				err = fmt.Errorf("%s is out of range, expected 1 to 1000000", csvfile.Quote(v))
			}
			return err
		}},
		policy.Parameter[sim.Config]{Key: "hints", Set: func(c *sim.Config, v string) (err error) {
			c.Hints, err = queue.ParseDuration(v)
			return err
		}},
		policy.Parameter[sim.Config]{Key: "weights-mem", Set: func(c *sim.Config, v string) error {
			b, err := gpu.ParseMemory(v)
			c.WeightsMem = int64(b)
			return err
		}})
	return append(list, policy.Of(func(c *sim.Config) *queue.Options { return &c.Options }, queue.Parameters())...)
}()

func integer(n int64) string { return strconv.FormatInt(n, 10) }
