package gfaas

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
)

func newLs(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List functions",
		Long: `List the applied functions, sorted by name. With -o json, jsonl and yaml, each
function has the keys and values of its file, without keys that have their default
value. The YAML output can be applied again.`,
		Example: `  # List the functions
  gfaas ls

  # Save all functions as a file for gfaas apply
  gfaas ls -o yaml > functions.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runLs(cmd.Context(), t) },
	}
	t.env.Outputs(cmd, "table", "wide", "json", "jsonl", "csv", "yaml")
	return cmd
}

func runLs(ctx context.Context, t *tool) error {
	state, err := t.store.List(ctx)
	if err != nil {
		return err
	}
	functions, records := state.Functions, state.Instances
	if t.env.Output == "yaml" {
		return t.showYAML(functions)
	}
	documents := make([]json.RawMessage, 0, len(functions))
	for _, fn := range functions {
		doc, err := asJSON(fn)
		if err != nil {
			return err
		}
		documents = append(documents, doc)
	}
	return t.env.Show(documents, func() [][]string {
		if t.env.Output == "csv" {
			return functionRecords(functions, records)
		}
		return functionRows(functions, records, t.env.Output == "wide")
	})
}

// showYAML prints functions as a file for gfaas apply.
func (t *tool) showYAML(functions []function.Function) error {
	if len(functions) == 0 {
		return nil
	}
	text, err := function.Format(functions)
	if err != nil {
		return err
	}
	return t.env.Emit(func(w io.Writer) error { _, err := w.Write(text); return err })
}

// asJSON returns the function's document as JSON.
func asJSON(fn function.Function) (json.RawMessage, error) {
	text, err := function.Format([]function.Function{fn})
	if err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text)
}

func instancesOf(fn string, records []instance.Record) int {
	n := 0
	for _, r := range records {
		if r.Function == fn {
			n++
		}
	}
	return n
}

// functionRecords returns the CSV form. The meaning of its columns must not change.
func functionRecords(functions []function.Function, records []instance.Record) [][]string {
	return cli.Rows(functions, func(fn function.Function) []cli.Cell {
		return []cli.Cell{{"function", fn.Name}, {"runtime", launch.RuntimeOf(fn)}, {"image", fn.Image}, {"contract", fn.Contract}, {"kind", fn.Kind},
			{"slo_ms", number.Plain(float64(fn.SLO) / float64(time.Millisecond))}, {"gpu_mem_mib", number.Plain(fn.GPUMem.MiB())},
			{"gpus", strconv.Itoa(fn.GPUs)}, {"weight", number.Plain(fn.Weight)}, {"tenant", fn.Tenant}, {"instances", strconv.Itoa(instancesOf(fn.Name, records))}}
	})
}

// functionRows returns the table form.
func functionRows(functions []function.Function, records []instance.Record, wide bool) [][]string {
	return cli.Rows(functions, func(fn function.Function) []cli.Cell {
		cells := []cli.Cell{{"NAME", fn.Name}, {"RUNTIME", launch.RuntimeOf(fn)}, {"CONTRACT", fn.Contract}, {"SLO", cli.OrDash(fn.SLO > 0, fn.SLO.String())},
			{"MEM", cli.OrDash(fn.GPUMem > 0, fn.GPUMem.String())}, {"INSTANCES", strconv.Itoa(instancesOf(fn.Name, records))}}
		if wide {
			cells = append(cells, cli.Cell{"GPUS", strconv.Itoa(fn.GPUs)}, cli.Cell{"KIND", fn.Kind}, cli.Cell{"TENANT", fn.Tenant},
				cli.Cell{"WHAT", strings.TrimSpace(fn.Image + " " + strings.Join(fn.Command, " "))})
		}
		return cells
	})
}
