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

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
)

func newLs(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the functions",
		Long: `Lists the applied functions by name. In JSON and YAML each is what its file
says, less what is at its default; the YAML can be applied again.`,
		Example: "  gfaas ls\n  gfaas ls -o yaml > functions.yaml",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runLs(cmd.Context(), t) },
	}
	t.env.Outputs(cmd, "table", "wide", "json", "jsonl", "csv", "yaml")
	return cmd
}

func runLs(ctx context.Context, t *tool) error {
	state, err := t.store.Look(ctx)
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

// showYAML prints functions as a file that apply reads.
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

// asJSON is the function's document in JSON.
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

// functionRecords is the CSV form; its columns keep their meaning.
func functionRecords(functions []function.Function, records []instance.Record) [][]string {
	out := [][]string{{"function", "runtime", "image", "contract", "kind", "slo_ms", "gpu_mem_mib", "gpus", "weight", "tenant", "instances"}}
	for _, fn := range functions {
		out = append(out, []string{
			fn.Name, launch.RuntimeOf(fn), fn.Image, fn.Contract, fn.Kind, number.Plain(float64(fn.SLO) / float64(time.Millisecond)),
			number.Plain(fn.GPUMem.MiB()), strconv.Itoa(fn.GPUs), number.Plain(fn.Weight), fn.Tenant,
			strconv.Itoa(instancesOf(fn.Name, records)),
		})
	}
	return out
}

// functionRows is the form for people.
func functionRows(functions []function.Function, records []instance.Record, wide bool) [][]string {
	header := []string{"NAME", "RUNTIME", "CONTRACT", "SLO", "MEM", "INSTANCES"}
	if wide {
		header = append(header, "GPUS", "KIND", "TENANT", "WHAT")
	}
	out := [][]string{header}
	for _, fn := range functions {
		row := []string{
			fn.Name, launch.RuntimeOf(fn), fn.Contract, orDash(fn.SLO > 0, fn.SLO.String()),
			orDash(fn.GPUMem > 0, fn.GPUMem.String()), strconv.Itoa(instancesOf(fn.Name, records)),
		}
		if wide {
			row = append(row, strconv.Itoa(fn.GPUs), fn.Kind, fn.Tenant, strings.TrimSpace(fn.Image+" "+strings.Join(fn.Command, " ")))
		}
		out = append(out, row)
	}
	return out
}

func orDash(given bool, text string) string {
	if !given {
		return "-"
	}
	return text
}
