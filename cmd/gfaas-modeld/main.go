// Command gfaas-modeld holds models on a GPU, one copy for all that use them.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/modeld"
)

func main() { os.Exit(modeld.Main()) }
