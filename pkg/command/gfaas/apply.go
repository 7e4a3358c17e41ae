package gfaas

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

type applyOptions struct{ files []string }

func newApply(t *tool) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:        "apply -f FILE",
		SuggestFor: []string{"deploy", "create"},
		Short:      "Add functions, or change them",
		Long: `Reads function files and keeps what they describe, in place of functions of
the same names. All files are applied, or none.

A function has a name and a command, which starts in the file's folder, or an
image. It may have env, port (8080), contract (auto, http, openfaas, kserve-v2 or
openai), kind (inference or training), slo (69ms), gpu_mem (1427MiB), gpus (1),
weight (1), tenant and model ({name: resnet50,
file: resnet50.safetensors}). docs/files.md of the
source says more of each.

Instances that run already stay as they are until they are started again.`,
		Example: `  gfaas apply -f function.yaml
  cat a.yaml b.yaml | gfaas apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	cmd.Flags().StringArrayVarP(&o.files, "file", "f", nil, "function file, - for standard input; may be given several times")
	cli.Files(cmd, "yaml yml", "file")
	return cmd
}

func (o *applyOptions) run(ctx context.Context, t *tool) error {
	if len(o.files) == 0 {
		return cli.Usagef("--file is missing: expected a function file, or - for standard input")
	}
	var all []function.Function
	from := map[string]string{}
	for _, file := range o.files {
		list, err := cli.LoadFunctions(t.env, file)
		if err != nil {
			return err
		}
		for _, fn := range list {
			if first, twice := from[fn.Name]; twice {
				return fmt.Errorf("%s: function %q is in %s already: expected each name once", file, fn.Name, first)
			}
			from[fn.Name] = file
			if fn.Model != nil && fn.Model.File != "" {
				if err := wire.CheckName(fn.Model.Name); err != nil {
					return fmt.Errorf("%s: function %s: model.name: %w", file, fn.Name, err)
				}
			}
		}
		all = append(all, list...)
	}
	before, err := t.store.Look(ctx)
	if err != nil {
		return err
	}
	if err := t.store.Apply(ctx, all...); err != nil {
		return err
	}
	for _, fn := range all {
		if ours := overridden(fn); len(ours) > 0 {
			t.env.Notef("note: function %s: env: %s: gfaas sets that for its instances itself", fn.Name, strings.Join(ours, ", "))
		}
		t.env.Debugf("function %s %s", fn.Name, change(before.Functions, fn))
	}
	return nil
}

// overridden are the variables of a function's env that its instances do not get.
func overridden(fn function.Function) (names []string) {
	for _, name := range preload.Replaced {
		if _, given := fn.Env[name]; given && (name != preload.ModelSocket || fn.Model != nil && fn.Model.File != "") {
			names = append(names, name)
		}
	}
	return names
}

// change says in a word what applying fn did.
func change(before []function.Function, fn function.Function) string {
	for _, old := range before {
		switch {
		case old.Name != fn.Name:
		case reflect.DeepEqual(old, fn):
			return "unchanged"
		default:
			return "changed"
		}
	}
	return "added"
}
