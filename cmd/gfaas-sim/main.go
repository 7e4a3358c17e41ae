// Command gfaas-sim tries policies on a virtual clock.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/sim"
)

func main() { os.Exit(sim.Main()) }
