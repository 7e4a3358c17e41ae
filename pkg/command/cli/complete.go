package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

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

// Keys lets a shell complete a flag that takes KEY=VALUE with the keys.
func Keys(cmd *cobra.Command, flag string, keys ...string) {
	var pairs []string
	for _, k := range keys {
		pairs = append(pairs, k+"=")
	}
	_ = cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(pairs, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}
