package sim

import (
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
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
	for _, p := range queue.Parameters() {
		list = append(list, policy.Parameter[sim.Config]{Key: p.Key, Set: func(c *sim.Config, v string) error { return p.Set(&c.Options, v) }})
	}
	return list
}()

func integer(n int64) string { return strconv.FormatInt(n, 10) }
