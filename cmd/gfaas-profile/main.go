// Command gfaas-profile measures what a function sustains under slices of a GPU.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/profile"
)

func main() { os.Exit(profile.Main()) }
