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
	"github.com/gfaas/gfaas/pkg/lists"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

type applyOptions struct{ files []string }

func newApply(t *tool) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:        "apply -f FILE",
		SuggestFor: []string{"deploy", "create"},
		Short:      "Add or change functions",
		Long: `Add the functions of the given files, or replace functions of the same names.
Either all files are applied or none.

A function needs a name and either a command, which starts in the folder of the
file, or an image. The most common other keys are:

  port      port on which a container listens (default 8080); a process gets a free
            port in the variable PORT
  contract  HTTP interface of the server: auto (the default), http, openfaas,
            kserve-v2 or openai
  aliases   further names of the function, for calls that name a model, like
            [Qwen/Qwen3-8B]; no two functions may have a name or alias in common
  slo       objective for the p95 latency, like 69ms
  sm        share of the SMs of an instance that gfaas serve starts, in percent
  quota     part of the GPU's time of such an instance, like 0.3 or 0.3:0.6
  gpu_mem   limit on the GPU memory of an instance, like 1427MiB
  gpus      number of GPUs of an instance (default 1)
  model     model whose weights the instances share, like
            {name: resnet50, file: resnet50.safetensors}
  env       environment variables of the server

The page docs/files.md of the source describes all keys.

If an applied function has running instances, these keep the old version of the
function. The ones that gfaas serve started are stopped as soon as they are idle.
To restart the instances of gfaas up with the new version, run gfaas up again.`,
		Example: `  # Apply the functions of one file
  gfaas apply -f function.yaml

  # Apply the functions of two files together
  cat a.yaml b.yaml | gfaas apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	cmd.Flags().StringArrayVarP(&o.files, "file", "f", nil, "function `file`, or - for standard input (repeatable)")
	cli.CompleteFiles(cmd, "yaml yml", "file")
	return cmd
}

func (o *applyOptions) run(ctx context.Context, t *tool) error {
	if len(o.files) == 0 {
		return cli.Usagef("--file is missing: expected a function file, or - for standard input")
	}
	var functions []function.Function
	fileOf := map[string]string{} // by function
	for _, file := range o.files {
		list, err := cli.LoadFunctions(t.env, file)
		if err != nil {
			return err
		}
		for _, fn := range list {
			if first, twice := fileOf[fn.Name]; twice {
				return fmt.Errorf("%s: function %q is in %s already: expected each name once", file, fn.Name, first)
			}
			fileOf[fn.Name] = file
			if fn.Model != nil && fn.Model.File != "" {
				if err := wire.CheckName(fn.Model.Name); err != nil {
					return fmt.Errorf("%s: function %s: model.name: %w", file, fn.Name, err)
				}
			}
		}
		functions = append(functions, list...)
	}
	before, err := t.store.List(ctx)
	if err != nil {
		return err
	}
	if err := t.store.Apply(ctx, functions...); err != nil {
		return err
	}
	for _, fn := range functions {
		if names := overridden(fn); len(names) > 0 {
			t.env.Notef("note: function %s: env: %s: overridden by the values that gfaas sets for each instance", fn.Name, strings.Join(names, ", "))
		}
		t.env.Debugf("function %s %s", fn.Name, changeWord(before.Functions, fn))
	}
	return nil
}

// overridden returns the variables in a function's env whose values gfaas replaces in its instances.
func overridden(fn function.Function) []string {
	return lists.Filter(preload.Replaced, func(name string) bool {
		_, present := fn.Env[name]
		return present && (name != preload.ModelSocket || fn.Model != nil && fn.Model.File != "")
	})
}

// changeWord returns a word for the effect of applying fn: added, changed or unchanged.
func changeWord(before []function.Function, fn function.Function) string {
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
