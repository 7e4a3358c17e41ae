// Command gfaas runs functions on slices of GPUs.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/gfaas"
)

func main() { os.Exit(gfaas.Main()) }
