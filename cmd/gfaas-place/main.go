// Command gfaas-place plans which slices of which GPUs serve a demand.
package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/place"
)

func main() { os.Exit(place.Main()) }
