// Command gfaas-tokend hands out the time and the multiprocessors of GPUs.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/tokend"
)

func main() { os.Exit(tokend.Main()) }
