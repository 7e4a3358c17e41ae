package kerneld

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

func newModule(env *cli.Env, socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "module",
		Short: "Store the code of kernels under a name",
	}
	cmd.AddCommand(newModulePut(env, socket), newModuleLs(env, socket), newModuleRm(env, socket))
	return cmd
}

func newModulePut(env *cli.Env, socket *string) *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "put NAME FILE|-",
		Short: "Store PTX, a cubin or a fatbin",
		Long: `Store the code in a file as the module NAME of a client (--client): PTX text, a cubin or a
fatbin, of at most 16 MiB. The daemon checks it and refuses malformed code. If the client
already has a module with this name, it is replaced; requests that have been accepted still
use the old code. A request uses the module with {"stored":NAME} (docs/kernels.md). The code
counts as memory of objects.`,
		Example: `  # store a cubin that requests use as {"stored":"blas/k"}
  gfaas-kerneld module put blas/k k.cubin`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cli.CompleteFileArgs(""),
	}, socket, func(ctx context.Context, c *kerneld.Client, args []string) error {
		if err := checkKey(args[0]); err != nil {
			return err
		}
		from, size, err := open(ctx, env, c, args[1])
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		defer from.Close()
		return c.PutModule(ctx, args[0], from, size)
	})
}

func newModuleLs(env *cli.Env, socket *string) *cobra.Command {
	cmd := withClient(&cobra.Command{
		Use:   "ls",
		Short: "List a client's modules",
		Long: `List the modules that a client (--client) has stored, with the names of their kernels.

JSON: a list of {"name","kind","size","kernels"}. kind is ptx, cubin or fatbin, and size is in
bytes.`,
		Example: `  # list the modules of the client alice
  gfaas-kerneld module ls --client alice`,
		Args: cobra.NoArgs,
	}, socket, func(ctx context.Context, c *kerneld.Client, _ []string) error {
		var answer struct{ Modules []kernel.Module }
		if err := c.ListModules(ctx, &answer); err != nil {
			return err
		}
		return env.Show(answer.Modules, func() [][]string {
			rows := [][]string{{"NAME", "KIND", "SIZE", "KERNELS"}}
			for _, m := range answer.Modules {
				rows = append(rows, []string{m.Name, m.Kind, strconv.FormatInt(m.Size, 10), strings.Join(m.Kernels, ",")})
			}
			return rows
		})
	})
	env.Outputs(cmd, "table", "json", "jsonl", "yaml", "csv")
	return cmd
}

func newModuleRm(_ *cli.Env, socket *string) *cobra.Command {
	return withClient(&cobra.Command{
		Use:     "rm NAME",
		Short:   "Delete a module",
		Long:    "Delete a module that a client (--client) has stored. Requests that have been accepted still\nuse it; its memory is freed after that.",
		Example: "  # delete a module\n  gfaas-kerneld module rm blas/k",
		Args:    cobra.ExactArgs(1),
	}, socket, func(ctx context.Context, c *kerneld.Client, args []string) error {
		if err := checkKey(args[0]); err != nil {
			return err
		}
		return c.RemoveModule(ctx, args[0])
	})
}
