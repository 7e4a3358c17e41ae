// Command gendocs writes the man pages and shell completions of every binary
// into two folders, and the names of all settings into a file:
// gendocs MAN COMPLETIONS SETTINGS.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gfaas"
	"github.com/gfaas/gfaas/pkg/command/kerneld"
	"github.com/gfaas/gfaas/pkg/command/modeld"
	"github.com/gfaas/gfaas/pkg/command/place"
	"github.com/gfaas/gfaas/pkg/command/profile"
	"github.com/gfaas/gfaas/pkg/command/sim"
	"github.com/gfaas/gfaas/pkg/command/tokend"
)

// trees are the command trees of all binaries.
var trees = map[string]func(*cli.Env) *cobra.Command{
	"gfaas": gfaas.NewRoot, "gfaas-kerneld": kerneld.NewRoot, "gfaas-modeld": modeld.NewRoot, "gfaas-place": place.NewRoot,
	"gfaas-profile": profile.NewRoot,
	"gfaas-sim":     sim.NewRoot, "gfaas-tokend": tokend.NewRoot,
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: gendocs MAN COMPLETIONS SETTINGS")
		os.Exit(cli.ExitUsage)
	}
	// Defaults are printed as most users have them, and not as they are here.
	if err := os.Setenv("GFAAS_RUN_DIR", "/run/user/UID/gfaas"); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(cli.ExitFailure)
	}
	for name, build := range trees {
		if err := generate(name, build, os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "gendocs:", err)
			os.Exit(cli.ExitFailure)
		}
	}
	if err := writeEnvironment(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(cli.ExitFailure)
	}
	if err := os.WriteFile(os.Args[3], []byte(strings.Join(settings(), "\n")+"\n"), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(cli.ExitFailure)
	}
}

// settings are the names of the flags of all commands, in order.
func settings() (names []string) {
	for name, build := range trees {
		env := &cli.Env{Prog: name, Out: io.Discard, Err: io.Discard}
		walk(env.Tree(build), func(cmd *cobra.Command) {
			names = cli.SettingsOf(cmd.Flags(), cli.SettingsOf(cmd.PersistentFlags(), names))
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func walk(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, do)
	}
}

// writePages writes the man pages of a command and of those below it.
func writePages(cmd *cobra.Command, header *doc.GenManHeader, dir string) error {
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() || gfaas.IsPlugin(sub) { // which has pages of its own
			continue
		}
		if err := writePages(sub, header, dir); err != nil {
			return err
		}
	}
	cmd.InitDefaultVersionFlag() // as --help does
	var page bytes.Buffer
	own := *header // which is filled with the command's name
	if err := doc.GenMan(cmd, &own, &page); err != nil {
		return err
	}
	var notes strings.Builder
	for _, n := range cli.NotesOf(cmd) {
		notes.WriteString(".SH " + n.Title + "\n" + strings.ReplaceAll(n.Text, "-", "\\-") + "\n\n")
	}
	const last = ".SH SEE ALSO"
	plain := strings.ReplaceAll(page.String(), `\fP[=false]`, `\fP`) // a switch is off unless it is given
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if words := cli.Alternatives(f); words != "" {
			plain = strings.Replace(plain, `\fB--`+f.Name+`\fP[=`+f.DefValue+`]`, `\fB--`+f.Name+`\fP[=`+words+`]`, 1)
		}
	})
	text, more, found := strings.Cut(plain, last)
	text += notes.String()
	if found {
		text += last + more
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
}

// generate writes the pages and completions of one binary. The date is fixed:
// the pages change when the commands do and at no other time.
func generate(name string, build func(*cli.Env) *cobra.Command, man, completions string) error {
	env := &cli.Env{Prog: name, In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	root := env.Tree(build)
	root.DisableAutoGenTag = true
	date := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	header := &doc.GenManHeader{Section: "1", Source: "gfaas", Manual: "gfaas", Date: &date}
	if err := writePages(root, header, man); err != nil {
		return err
	}
	return errors.Join(
		root.GenBashCompletionFileV2(filepath.Join(completions, name+".bash"), true),
		root.GenZshCompletionFile(filepath.Join(completions, name+".zsh")),
		root.GenFishCompletionFile(filepath.Join(completions, name+".fish"), true),
	)
}
