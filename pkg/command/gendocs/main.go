// Command gendocs generates documentation from the code: gendocs MAN COMPLETIONS SETTINGS DOCS. It writes the man
// pages and the shell completions of every binary to the folders MAN and COMPLETIONS, the names of all settings
// to the file SETTINGS, and the pages of docs/ with tables from registries and from examples/papers to the folder DOCS.
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gfaas"
	"github.com/gfaas/gfaas/pkg/command/kerneld"
	"github.com/gfaas/gfaas/pkg/command/modeld"
	"github.com/gfaas/gfaas/pkg/command/place"
	"github.com/gfaas/gfaas/pkg/command/profile"
	"github.com/gfaas/gfaas/pkg/command/sim"
	"github.com/gfaas/gfaas/pkg/command/tokend"
)

// trees maps the names of the binaries to their command trees.
var trees = map[string]func(*cli.Env) *cobra.Command{
	"gfaas": gfaas.NewRoot, "gfaas-kerneld": kerneld.NewRoot, "gfaas-modeld": modeld.NewRoot, "gfaas-place": place.NewRoot,
	"gfaas-profile": profile.NewRoot,
	"gfaas-sim":     sim.NewRoot, "gfaas-tokend": tokend.NewRoot,
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: gendocs MAN COMPLETIONS SETTINGS DOCS")
		os.Exit(cli.ExitUsage)
	}
	if err := writeAll(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(cli.ExitFailure)
	}
}

// writeAll writes all documentation to the given folders and the file for settings.
func writeAll(man, completions, settingsFile, docs string) error {
	// Defaults must not depend on the environment of this process.
	if err := os.Setenv("GFAAS_RUN_DIR", "/run/user/UID/gfaas"); err != nil {
		return err
	}
	for name, build := range trees {
		if err := generate(name, build, man, completions); err != nil {
			return err
		}
	}
	fromPapers, err := paperTables("examples/papers")
	if err != nil {
		return err
	}
	maps.Copy(tables, fromPapers)
	return errors.Join(writeEnvironment(man), writeTables("docs", docs, tables),
		os.WriteFile(settingsFile, []byte(strings.Join(settings(), "\n")+"\n"), 0o644))
}

// settings returns the sorted names of the flags of all commands.
func settings() (names []string) {
	for name, build := range trees {
		env := &cli.Env{Prog: name, Out: io.Discard, Err: io.Discard}
		cli.Walk(env.Tree(build), func(cmd *cobra.Command) {
			names = cli.SettingsOf(cmd.Flags(), cli.SettingsOf(cmd.PersistentFlags(), names))
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// generate writes the pages and completions of one binary. The date on the pages is fixed, so that they change only
// when the commands do.
func generate(name string, build func(*cli.Env) *cobra.Command, man, completions string) error {
	env := &cli.Env{Prog: name, In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	root := env.Tree(build)
	root.DisableAutoGenTag = true
	date := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	header := doc.GenManHeader{Section: "1", Source: "gfaas", Manual: "gfaas", Date: &date}
	if err := writePages(root, header, man); err != nil {
		return err
	}
	return errors.Join(
		root.GenBashCompletionFileV2(filepath.Join(completions, name+".bash"), true),
		root.GenZshCompletionFile(filepath.Join(completions, name+".zsh")),
		root.GenFishCompletionFile(filepath.Join(completions, name+".fish"), true),
	)
}
