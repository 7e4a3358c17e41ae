// Command gfaas-kerneld runs graphs of GPU kernels as functions.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/kerneld"
)

func main() { os.Exit(kerneld.Main()) }
