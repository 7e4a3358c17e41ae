// Package queueset reads the parameters of queueing policies, KEY=VALUE, for the
// commands that run them.
package queueset

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// Parameters are what can be set of something, by key.
type Parameters[T any] map[string]func(to *T, value string) error

// Policy are the parameters of the policies.
var Policy = Parameters[queue.Options]{
	"t":          func(o *queue.Options, v string) (err error) { o.T, err = duration(v); return err },
	"alpha":      func(o *queue.Options, v string) (err error) { o.Alpha, err = csvfile.Number(v); return err },
	"limit":      func(o *queue.Options, v string) (err error) { o.Limit, err = whole(v); return err },
	"starvation": func(o *queue.Options, v string) (err error) { o.Starvation, err = csvfile.Number(v); return err },
	"penalty":    func(o *queue.Options, v string) (err error) { o.Penalty, err = csvfile.Number(v); return err },
	"correct": func(o *queue.Options, v string) error {
		correct, err := strconv.ParseBool(v)
		o.Uncorrected = !correct
		return err
	},
	"patient":      func(o *queue.Options, v string) (err error) { o.Patient, err = strconv.ParseBool(v); return err },
	"prefetch":     func(o *queue.Options, v string) (err error) { o.Prefetch, err = strconv.ParseBool(v); return err },
	"utilization":  func(o *queue.Options, v string) (err error) { o.Utilization, err = Share(v); return err },
	"tenant-slots": func(o *queue.Options, v string) (err error) { o.Limits.Slots, err = whole(v); return err },
	"tenant-mem": func(o *queue.Options, v string) error {
		b, err := gpu.ParseMemory(v)
		o.Limits.Mem = int64(b)
		return err
	},
	"tenant-time": func(o *queue.Options, v string) (err error) { o.Limits.Time, err = Share(v); return err },
}

// heeds says of what only some policies look at by which.
var heeds = map[string]func(policy string) bool{
	"t":           oneOf("mqfq", "mqfq-sticky", "gfaas"),
	"alpha":       oneOf("mqfq-sticky"),
	"limit":       oneOf("lalb-o3"),
	"starvation":  oneOf("sjf"),
	"penalty":     oneOf("cfs-affinity"),
	"correct":     oneOf("mqfq", "mqfq-sticky", "gfaas", "cfs-affinity"),
	"patient":     oneOf("lalb", "lalb-o3"),
	"prefetch":    oneOf("mqfq-sticky"),
	"utilization": func(policy string) bool { return !queue.OneAtATime(policy) && policy != "exclusive" },
}

func oneOf(policies ...string) func(string) bool {
	return func(policy string) bool { return slices.Contains(policies, policy) }
}

// Ignored are those of the keys that none of the policies looks at.
func Ignored(keys []string, policies ...string) (out []string) {
	for _, key := range keys {
		byLimits := key == "correct" && slices.Contains(keys, "tenant-time")
		if heed := heeds[key]; heed != nil && !byLimits && !slices.ContainsFunc(policies, heed) {
			out = append(out, key)
		}
	}
	return out
}

// Keys are the keys there are, in order.
func (p Parameters[T]) Keys() []string { return slices.Sorted(maps.Keys(p)) }

// Set applies one KEY=VALUE of the flag --set.
func (p Parameters[T]) Set(to *T, text string) error {
	key, value, pair := strings.Cut(text, "=")
	if !pair {
		return cli.Usagef("--set %s: expected KEY=VALUE", csvfile.Quote(text))
	}
	apply, known := p[key]
	if !known {
		return cli.Usagef("--set %s: there is no such parameter, expected one of %s", csvfile.Quote(text), strings.Join(p.Keys(), ", "))
	}
	if err := apply(to, value); err != nil {
		return cli.Usagef("--set %s: %v", key, err)
	}
	return nil
}

// duration reads a duration that is not negative.
func duration(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || number.Vanished(value, float64(d)) {
		return 0, fmt.Errorf("%s is not a duration, expected one like 10s", csvfile.Quote(value))
	}
	return d, nil
}

// Share reads a percentage above 0 as a fraction.
func Share(value string) (float64, error) {
	v, err := csvfile.Percent(value)
	return v / 100, err
}

// whole reads a whole number that is not negative.
func whole(value string) (int, error) {
	n, err := csvfile.Count(value, 0)
	return int(n), err
}
