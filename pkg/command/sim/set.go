package sim

import (
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

// parameters are what --set can set: the parameters of the policies, and the simulator's own.
var parameters = func() []policy.Parameter[sim.Config] {
	all := []policy.Parameter[sim.Config]{
		{Key: "demand", Set: func(c *sim.Config, v string) (err error) { c.Demand, err = queue.Share(v); return err }},
		{Key: "interference", Set: func(c *sim.Config, v string) (err error) { c.Interference, err = csvfile.Number(v); return err }},
	}
	for _, p := range queue.Parameters() {
		all = append(all, policy.Parameter[sim.Config]{Key: p.Key, Set: func(c *sim.Config, v string) error { return p.Set(&c.Options, v) }})
	}
	return all
}()

func integer(n int64) string { return strconv.FormatInt(n, 10) }
