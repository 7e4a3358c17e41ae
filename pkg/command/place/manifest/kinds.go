package manifest

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/plan"
)

// Kind is an exporter: an engine for which plans can be written. To add one, add an entry to
// kinds and a file with its function and its flags.
type Kind struct {
	Name          string                         // of the subcommand of gfaas-place export
	Help          string                         // purpose; a phrase without a full stop
	Long, Example string                         // of the subcommand's help
	Simulates     bool                           // it can start simulated GPUs
	Flags         func(*pflag.FlagSet, *Options) // adds the exporter's flags; nil if it has none
	Write         func(plan.Plan, Options) (Manifest, error)
}

// kinds lists the exporters in the order of the man pages.
var kinds = []Kind{composeKind, swarmKind, hamiKind, draKind}

// Kinds returns the exporters in the order of the man pages.
func Kinds() []Kind { return slices.Clone(kinds) }

// Check returns an error if an option is out of range. The error begins with its flag.
func (o Options) Check() error {
	if o.Compose < 0 || o.Compose > 2 {
		return fmt.Errorf("compose-version %d: expected 1 or 2", o.Compose)
	}
	return o.checkSigning()
}
