package rollout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/status"
)

// Gateway is the part of the gateway's client that scaling needs.
type Gateway interface {
	// Scales returns the number of instances of each function.
	Scales(ctx context.Context) ([]status.Scale, error)
	// Scale sets the number of instances of a function to keep ready.
	Scale(ctx context.Context, name string, n int) error
	Status(ctx context.Context) (status.Status, error)
}

// ScaleTarget is a number of instances of a function to keep ready.
type ScaleTarget struct {
	Function string
	Min      int
}

// Scale sets all targets. It sets none if any target is invalid.
func Scale(ctx context.Context, gateway Gateway, targets []ScaleTarget) error {
	known, err := gateway.Scales(ctx)
	if err != nil {
		return err
	}
	for _, t := range targets {
		switch at := slices.IndexFunc(known, func(s status.Scale) bool { return s.Function == t.Function }); {
		case at < 0:
			return failf("'gfaas ls' lists the applied functions", "no such function: %s", t.Function)
		case t.Min > known[at].Max:
			return &Error{usage: true, Err: fmt.Errorf("%s=%d: expected at most %d, scale.max of the function (default %d)",
				t.Function, t.Min, known[at].Max, function.DefaultScale.Max)}
		}
	}
	for _, t := range targets {
		if err := gateway.Scale(ctx, t.Function, t.Min); err != nil {
			return err
		}
	}
	return nil
}

const (
	scalePollInterval = 100 * time.Millisecond
	rescaleEvery      = 10 // polls
)

// AwaitScale waits until all targets are reached. It returns an error if a function's instances do not start. It
// repeats targets of 0, because the gateway stops only idle instances.
func AwaitScale(ctx context.Context, gateway Gateway, targets []ScaleTarget) error {
	tick := time.NewTicker(scalePollInterval)
	defer tick.Stop()
	for n := 1; ; n++ {
		list, err := gateway.Scales(ctx)
		if err != nil {
			return err
		}
		pending := slices.DeleteFunc(slices.Clone(targets), func(t ScaleTarget) bool {
			return slices.ContainsFunc(list, func(s status.Scale) bool {
				return s.Function == t.Function && (s.Ready >= t.Min && t.Min > 0 || t.Min == 0 && s.Wanted == 0)
			})
		})
		if len(pending) == 0 {
			return nil
		}
		for _, t := range pending {
			if t.Min == 0 && n%rescaleEvery == 0 {
				if err := gateway.Scale(ctx, t.Function, t.Min); err != nil {
					return err
				}
			}
		}
		now, err := gateway.Status(ctx)
		if err != nil {
			return err
		}
		for _, fn := range now.Functions {
			if fn.State == status.Failing && slices.ContainsFunc(pending, func(t ScaleTarget) bool { return t.Function == fn.Function && t.Min > 0 }) {
				return fmt.Errorf("function %s does not start: %s", fn.Function, cmp.Or(fn.Reason.Get("error"), fn.Why))
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
