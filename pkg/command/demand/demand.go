// Package demand reads the value of the flag --demand, for the commands that plan.
package demand

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Load reads a demand from a file, or from a list such as resnet=250,bert=40. An existing file takes precedence.
func Load(env *cli.Env, arg string) ([]plan.Demand, error) {
	if strings.Contains(arg, "=") {
		if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
			d, err := plan.ParseDemand(arg)
			if err != nil {
				return nil, cli.Usagef("--demand: %w", err)
			}
			return d, nil
		}
	}
	d, err := cli.Load(env, arg, plan.ReadDemand)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Fail(cli.ExitFailure, "give a demand file, or a list like resnet=250,bert=40", err)
	}
	if err == nil && len(d) == 0 {
		env.Notef("note: the demand in %s is empty, so there is nothing to plan", arg)
	}
	return d, err
}
