package profile

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
)

// checkJobs sets the pattern of training functions, and checks that no flag is about their requests.
func (o *runOptions) checkJobs() error {
	if o.progress != "" {
		if _, err := regexp.Compile(o.progress); err != nil {
			return cli.Usagef("--progress: %w", err)
		}
	}
	jobs := 0
	o.Functions = slices.Clone(o.Functions)
	for i := range o.Functions {
		fn := &o.Functions[i]
		if fn.Kind != function.Training {
			continue
		}
		jobs++
		for _, flag := range []string{"load", "batch", "slo", "body", "instances"} {
			if o.given(flag) {
				return cli.Usagef("--%s: not allowed for %s, a job (kind: %s), to which no requests are sent", flag, fn.Name, function.Training)
			}
		}
		if o.progress != "" {
			fn.Progress = o.progress
		}
		if fn.Progress == "" {
			return cli.Fail(cli.ExitUsage, "kernel launches do not show where an iteration begins, so let the job print a line for each iteration",
				fmt.Errorf("%s: progress of %s is missing: a job (kind: %s) needs a pattern that matches one line of output for each iteration, like '^step ([0-9]+)', or --progress", o.path, fn.Name, function.Training))
		}
	}
	if o.progress != "" && jobs == 0 {
		return cli.Usagef("--progress: no function to measure is a job (kind: %s)", function.Training)
	}
	return nil
}
