package sim

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/sim"
)

// parameters are what --set can set, by key.
var parameters = map[string]func(c *sim.Config, value string) error{
	"t":          func(c *sim.Config, v string) (err error) { c.T, err = duration(v); return err },
	"alpha":      func(c *sim.Config, v string) (err error) { c.Alpha, err = csvfile.Number(v); return err },
	"limit":      func(c *sim.Config, v string) (err error) { c.Limit, err = whole(v); return err },
	"starvation": func(c *sim.Config, v string) (err error) { c.Starvation, err = csvfile.Number(v); return err },
	"penalty":    func(c *sim.Config, v string) (err error) { c.Penalty, err = csvfile.Number(v); return err },
	"correct": func(c *sim.Config, v string) error {
		correct, err := strconv.ParseBool(v)
		c.Uncorrected = !correct
		return err
	},
	"prefetch":     func(c *sim.Config, v string) (err error) { c.Prefetch, err = strconv.ParseBool(v); return err },
	"utilization":  func(c *sim.Config, v string) (err error) { c.Utilization, err = share(v); return err },
	"demand":       func(c *sim.Config, v string) (err error) { c.Demand, err = share(v); return err },
	"tenant-slots": func(c *sim.Config, v string) (err error) { c.Limits.Slots, err = whole(v); return err },
	"tenant-mem": func(c *sim.Config, v string) error {
		b, err := gpu.ParseBytes(v)
		c.Limits.Mem = int64(b)
		return err
	},
	"tenant-time":  func(c *sim.Config, v string) (err error) { c.Limits.Time, err = share(v); return err },
	"interference": func(c *sim.Config, v string) (err error) { c.Interference, err = csvfile.Number(v); return err },
}

// set applies one KEY=VALUE.
func set(c *sim.Config, text string) error {
	key, value, pair := strings.Cut(text, "=")
	if !pair {
		return cli.Usagef("--set %s: expected KEY=VALUE", csvfile.Quote(text))
	}
	apply, known := parameters[key]
	if !known {
		keys := strings.Join(slices.Sorted(maps.Keys(parameters)), ", ")
		return cli.Usagef("--set %s: there is no such parameter, expected one of %s", csvfile.Quote(text), keys)
	}
	if err := apply(c, value); err != nil {
		return cli.Usagef("--set %s: %v", key, err)
	}
	return nil
}

// duration reads a duration that is not negative.
func duration(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, cli.Usagef("%s is not a duration, expected one like 10s", csvfile.Quote(value))
	}
	return d, nil
}

// share reads a percentage above 0 as a fraction.
func share(value string) (float64, error) {
	v, err := csvfile.Percent(value)
	return v / 100, err
}

// whole reads a whole number that is not negative.
func whole(value string) (int, error) {
	n, err := csvfile.Count(value, 0)
	return int(n), err
}

func integer(n int64) string { return strconv.FormatInt(n, 10) }
