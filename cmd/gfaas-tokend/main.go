package main

import (
	"os"

	"github.com/gfaas/gfaas/pkg/command/tokend"
)

func main() { os.Exit(tokend.Main()) }
