package sim

import (
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/queueset"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/sim"
)

// parameters are what --set can set, by key: those of the policies, and the
// simulator's own.
var parameters = func() queueset.Parameters[sim.Config] {
	all := queueset.Parameters[sim.Config]{
		"demand":       func(c *sim.Config, v string) (err error) { c.Demand, err = queueset.Share(v); return err },
		"interference": func(c *sim.Config, v string) (err error) { c.Interference, err = csvfile.Number(v); return err },
	}
	for key, apply := range queueset.Policy {
		all[key] = func(c *sim.Config, v string) error { return apply(&c.Options, v) }
	}
	return all
}()

func integer(n int64) string { return strconv.FormatInt(n, 10) }
