package cli

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
)

// oneOf is the value of a flag that accepts a word from a list.
type oneOf struct {
	value *string
	words []string
}

func (c oneOf) String() string { return *c.value }
func (c oneOf) Type() string   { return "string" }
func (c oneOf) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("expected %s", strings.Join(c.words, " or "))
	}
	*c.value = s
	return nil
}

// memory is the value of a flag for an amount of GPU memory.
type memory struct{ value *gpu.Bytes }

func (m memory) String() string { return m.value.String() }
func (m memory) Type() string   { return "" }
func (m memory) Set(s string) (err error) {
	*m.value, err = gpu.ParseMemory(s)
	return err
}

// Memory adds a flag for an amount of memory, which must be 0 or at least 1 MiB. The default is *value.
func Memory(flags *pflag.FlagSet, value *gpu.Bytes, name, usage string) {
	flags.Var(memory{value}, name, usage)
}

// errVanished is the error about a number other than 0 that is too small to represent.
var errVanished = errors.New("too close to 0")

// nonVanishingValue is the value of a flag that rejects numbers which would be rounded to 0, because 0 means "no
// limit" for many flags.
type nonVanishingValue struct {
	pflag.Value
	zero string // text of the value 0
}

func (e nonVanishingValue) Set(s string) error {
	old := e.String()
	if err := e.Value.Set(s); err != nil {
		return err
	}
	if strings.TrimPrefix(e.String(), "-") == e.zero && number.Vanished(s, 0) {
		return errors.Join(errVanished, e.Value.Set(old))
	}
	return nil
}

// rejectRoundedToZero wraps the values of flags for durations and floating-point numbers in
// nonVanishingValue.
func rejectRoundedToZero(flags *pflag.FlagSet) {
	zero := map[string]string{"duration": "0s", "float64": "0"}
	flags.VisitAll(func(f *pflag.Flag) {
		if text, rounds := zero[f.Value.Type()]; rounds {
			f.Value = nonVanishingValue{f.Value, text}
		}
	})
}

// Choice adds a flag that accepts one of the given words. The first word is the default.
func Choice(cmd *cobra.Command, value *string, name, usage string, words ...string) {
	*value = words[0]
	cmd.Flags().Var(oneOf{value, words}, name, usage+": "+strings.Join(words, ", "))
	CompleteWords(cmd, name, words...)
}

// CompleteFiles completes the named flags with file names. The extensions, such as "yaml yml", restrict the
// suggestions unless they are empty.
func CompleteFiles(cmd *cobra.Command, extensions string, flags ...string) {
	for _, name := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, CompleteFileArgs(extensions))
	}
}

// CompleteFileArgs returns a completion of arguments with file names, as CompleteFiles does for flags.
func CompleteFileArgs(extensions string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		if extensions == "" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return strings.Fields(extensions), cobra.ShellCompDirectiveFilterFileExt
	}
}

// CompleteWords completes a flag with the given words. The flag may accept other values.
func CompleteWords(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// ListOf completes a flag that accepts a comma-separated list of the given words, each at most once.
func ListOf(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		list := prefix[:strings.LastIndex(prefix, ",")+1] // the complete words
		used := strings.Split(list, ",")
		unused := lists.Filter(words, func(word string) bool { return !slices.Contains(used, word) })
		suggestions := lists.Map(unused, func(word string) string { return list + word })
		return suggestions, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// Keys completes a flag that accepts KEY=VALUE with the keys.
func Keys(cmd *cobra.Command, flag string, keys ...string) {
	pairs := lists.Map(keys, func(key string) string { return key + "=" })
	_ = cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(pairs, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// CheckAddress returns a usage error unless the value of a flag is HOST:PORT or empty. Local reports
// whether the address is reachable only from this host.
func CheckAddress(flag, address string) (local bool, err error) {
	if address == "" {
		return true, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return false, Usagef("%s %q: expected HOST:PORT: %w", flag, address, err)
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}
