package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// format matches a help text about a file, with or without its format.
var format = regexp.MustCompile(`\((CSV|JSON|YAML)|\.(csv|json|yaml)\b|\bfile\b`)

// TestFilesAreCompleted checks that a flag is completed with file names, by extension, if and only if its help mentions a
// file.
func TestFilesAreCompleted(t *testing.T) {
	for name, build := range trees {
		env := &cli.Env{Prog: name, Out: t.Output(), Err: t.Output()}
		cli.Walk(env.Tree(build), func(cmd *cobra.Command) {
			cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
				_, directive := completed(cmd, f)
				files := directive == cobra.ShellCompDirectiveDefault || directive == cobra.ShellCompDirectiveFilterFileExt
				want, exception := exceptions[f.Name]
				if !exception {
					want = format.MatchString(f.Usage)
				}
				if want != files {
					t.Errorf("completion of %s --%s (%s): got file names %v, want %v", cmd.CommandPath(), f.Name, f.Usage, files, want)
				}
			})
			if m := regexp.MustCompile(`\.(csv|json|yaml)\b`).FindStringSubmatch(cmd.Use); m != nil && !strings.Contains(cmd.Use, "--") {
				if cmd.ValidArgsFunction == nil {
					t.Fatalf("completion of the argument of %s: got none, want file names", cmd.Use)
				}
				if endings, _ := cmd.ValidArgsFunction(cmd, nil, ""); !slices.Contains(endings, m[1]) {
					t.Errorf("completion of the argument of %s: got the extensions %v, want %s among them", cmd.Use, endings, m[1])
				}
			}
		})
	}
}

// exceptions lists true for flags that take a file although the help does not mention one, and false for flags that take
// no file although it does.
var exceptions = map[string]bool{
	"resume": true, "baseline": true, "append": true, "socket": true, "function": false, "node": false,
}

func completed(cmd *cobra.Command, f *pflag.Flag) ([]string, cobra.ShellCompDirective) {
	complete, there := cmd.GetFlagCompletionFunc(f.Name)
	if !there {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return complete(cmd, nil, "")
}

// TestSettingsAreListed checks the list of settings. A flag that it lacks could not be set in the config file.
func TestSettingsAreListed(t *testing.T) {
	if got := cli.Settings(); !slices.Equal(got, settings()) {
		t.Errorf("pkg/command/cli/settings.txt is not up to date, run make docs: it has\n%v\nand the flags are\n%v", got, settings())
	}
}
