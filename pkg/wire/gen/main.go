// Command gen writes the C header of the client protocol to the file it is
// given.
package main

import (
	"fmt"
	"os"

	"github.com/gfaas/gfaas/pkg/wire"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(wire.CHeader()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}
