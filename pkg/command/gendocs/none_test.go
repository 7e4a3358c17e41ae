package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// TestSmallValuesAreNotReadAsZero checks that no flag reads a tiny value as 0, which means "no limit" for many flags, and
// that amounts of memory need a unit.
func TestSmallValuesAreNotReadAsZero(t *testing.T) {
	seen := map[string]int{}
	for name, build := range trees {
		root := (&cli.Env{Prog: name, Out: t.Output(), Err: t.Output()}).Tree(build)
		cli.Walk(root, func(cmd *cobra.Command) {
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				kind, little := f.Value.Type(), ""
				switch {
				case f.Name == "mem" || strings.HasSuffix(f.Name, "-mem") || f.Name == "capacity":
					kind, little = "memory", "5 16 1e-9 0.4 1e-12GiB 1023KiB -1 1e30"
				case kind == "duration":
					little = "0.1ns -0.4ns 0.0000001ms"
				case kind == "float64":
					little = "1e-400 -1e-999"
				}
				for text := range strings.FieldsSeq(little) {
					seen[kind]++
					before := f.Value.String()
					if err := f.Value.Set(text); err == nil {
						t.Errorf("%s --%s %s: got the value %s, want an error", cmd.CommandPath(), f.Name, text, f.Value)
					} else if kind != "memory" && f.Value.String() != before {
						t.Errorf("%s --%s %s: got the value %s after the error, want %s as before", cmd.CommandPath(), f.Name, text, f.Value, before)
					}
				}
			})
		})
	}
	for _, kind := range []string{"memory", "duration", "float64"} {
		if seen[kind] == 0 {
			t.Errorf("values tried for flags of kind %s: got none, want some", kind)
		}
	}
}
