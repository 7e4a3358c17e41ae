package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

// parameters lists the keys of --set: the parameters of the policies, and of the simulator
// itself.
var parameters = append([]policy.Parameter[sim.Config]{
	{Key: "demand", Set: field(queue.ParseShare, func(c *sim.Config) *float64 { return &c.Demand })},
	{Key: "interference", Set: field(csvfile.Number, func(c *sim.Config) *float64 { return &c.Interference })},
	{Key: "memory", Set: func(c *sim.Config, v string) error {
		if !c.SetMover(v) {
			names := lists.Map(sim.Movers(), func(m sim.Mover) string { return m.Name })
			return fmt.Errorf("%s: expected %s", csvfile.Quote(v), strings.Join(names, ", "))
		}
		return nil
	}},
	{Key: "fault", Set: func(c *sim.Config, v string) (err error) {
		if c.Fault, err = csvfile.Number(v); err == nil && (c.Fault < 1 || c.Fault > 1e6) {
			err = fmt.Errorf("%s is out of range, expected 1 to 1000000", csvfile.Quote(v))
		}
		return err
	}},
	{Key: "hints", Set: field(queue.ParseDuration, func(c *sim.Config) *time.Duration { return &c.Hints })},
	{Key: "weights-mem", Set: func(c *sim.Config, v string) error {
		b, err := gpu.ParseMemory(v)
		c.WeightsMem = int64(b)
		return err
	}},
}, policy.Of(func(c *sim.Config) *queue.Options { return &c.Options }, queue.Parameters())...)

// field returns a function that parses a value and stores it in a field.
func field[V any](parse func(string) (V, error), of func(*sim.Config) *V) func(*sim.Config, string) error {
	return func(c *sim.Config, text string) (err error) {
		*of(c), err = parse(text)
		return err
	}
}

func integer(n int64) string { return strconv.FormatInt(n, 10) }
