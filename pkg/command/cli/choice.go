package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// oneOf is the value of a flag that takes one of some words.
type oneOf struct {
	value *string
	words []string
}

func (c oneOf) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}
func (c oneOf) Type() string { return "string" }
func (c oneOf) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("expected %s", strings.Join(c.words, " or "))
	}
	*c.value = s
	return nil
}

// Choice gives a command a flag that takes one of these words; the first is
// the default.
func Choice(cmd *cobra.Command, value *string, name, usage string, words ...string) {
	*value = words[0]
	cmd.Flags().Var(oneOf{value, words}, name, usage+": "+strings.Join(words, ", "))
	Words(cmd, name, words...)
}
