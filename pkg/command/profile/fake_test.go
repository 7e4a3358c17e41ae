package profile

import (
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
)

// fakePlatform returns a platform with simulated GPUs. $FAKE_OTHERS lists their other users.
func fakePlatform() platform {
	return platform{
		gpus:   func(list string) (string, error) { return cmp.Or(list, "sim"), nil },
		runDir: cli.RunDir,
		open: func(_ context.Context, groups [][]string, _ measure.Job) ([]testbed.GPUs, error) {
			var testbeds []testbed.GPUs
			for range groups {
				gpus := &testbedtest.GPUs{}
				gpus.SetOthers(strings.Fields(os.Getenv("FAKE_OTHERS"))...)
				testbeds = append(testbeds, gpus)
			}
			return testbeds, nil
		},
	}
}

// mainFake runs gfaas-profile on simulated GPUs.
func mainFake() {
	os.Exit(cli.Main("gfaas-profile", func(env *cli.Env) *cobra.Command { return newRoot(env, fakePlatform()) }))
}
