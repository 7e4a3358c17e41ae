package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
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

// memory is the value of a flag that takes an amount of GPU memory.
type memory struct{ value *gpu.Bytes }

func (m memory) String() string {
	if m.value == nil {
		return ""
	}
	return m.value.String()
}
func (m memory) Type() string { return "" }
func (m memory) Set(s string) (err error) {
	*m.value, err = gpu.ParseMemory(s)
	return err
}

// Memory adds a flag that takes an amount of memory of at least 1 MiB, or 0; its
// default is what value holds.
func Memory(flags *pflag.FlagSet, value *gpu.Bytes, name, usage string) {
	flags.Var(memory{value}, name, usage)
}

// errVanished is of a number other than 0 that is too small to be read.
var errVanished = errors.New("too near to 0")

// exact is the value of a flag that refuses a number which it would read as 0: for many
// flags 0 is no limit.
type exact struct {
	pflag.Value
	zero string // how the value prints when it is 0
}

func (e exact) Set(s string) error {
	before := e.String()
	if err := e.Value.Set(s); err != nil {
		return err
	}
	if strings.TrimPrefix(e.String(), "-") == e.zero && number.Vanished(s, 0) {
		return errors.Join(errVanished, e.Value.Set(before))
	}
	return nil
}

// refuseVanished makes the flags that take durations and fractions exact.
func refuseVanished(flags *pflag.FlagSet) {
	zero := map[string]string{"duration": "0s", "float64": "0"}
	flags.VisitAll(func(f *pflag.Flag) {
		if text, inexact := zero[f.Value.Type()]; inexact {
			f.Value = exact{f.Value, text}
		}
	})
}

// Choice gives a command a flag that takes one of these words; the first is
// the default.
func Choice(cmd *cobra.Command, value *string, name, usage string, words ...string) {
	*value = words[0]
	cmd.Flags().Var(oneOf{value, words}, name, usage+": "+strings.Join(words, ", "))
	Words(cmd, name, words...)
}

// Files lets a shell complete these flags with the names of files. Endings, if
// any, are those that they usually have, like "yaml yml".
func Files(cmd *cobra.Command, endings string, flags ...string) {
	for _, name := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, FileArgs(endings))
	}
}

// FileArgs lets a shell complete a command's arguments as Files does flags.
func FileArgs(endings string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		if endings == "" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return strings.Fields(endings), cobra.ShellCompDirectiveFilterFileExt
	}
}

// Words lets a shell complete a flag with these words; it may take others.
func Words(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// ListOf lets a shell complete a flag that takes some of these words, with commas
// between them, each once.
func ListOf(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		before := begun[:strings.LastIndex(begun, ",")+1]
		used := strings.Split(before, ",")
		var out []string
		for _, w := range words {
			if !slices.Contains(used, w) {
				out = append(out, before+w)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// Keys lets a shell complete a flag that takes KEY=VALUE with the keys.
func Keys(cmd *cobra.Command, flag string, keys ...string) {
	var pairs []string
	for _, k := range keys {
		pairs = append(pairs, k+"=")
	}
	_ = cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(pairs, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}
