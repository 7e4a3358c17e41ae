package modeld

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/gpu"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// askTime limits the wait for the daemon's status.
const askTime = 5 * time.Second

// keys describes a model in JSON.
const keys = `{"name","tenant","public","state","bytes","gpu_bytes","tensors","sha256",
"generation","refs","source","loads","last_used"}. While the model is being loaded, there are
also "loaded_bytes", "why" (the reason why the load waits, a code of docs/reasons.md) and
"reason" (the same reason as a JSON object). The fields:

  state      gpu (the model is on the GPU), loading, or file (the model is only in its file,
             and is loaded again when it is requested)
  bytes      size of the file
  gpu_bytes  memory on the GPU; 0 if the model is not there
  loads      how many times the model was loaded since the daemon started
  refs       how many processes use the model`

func newList(t *tool) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the known models",
		Long:  "List the models that the daemon knows, on the GPU or not.\n\nJSON: a list of " + keys,
		Example: `  # list all models, with sources and reasons for waits
  gfaas-modeld ls -o wide`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), t, tenant) },
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "list only models that this tenant can use")
	t.env.Outputs(cmd, "table", "wide", "json", "yaml", "csv")
	return cmd
}

func list(ctx context.Context, t *tool, tenant string) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	models, err := client.Models(ctx, tenant)
	if err != nil {
		return explain(err)
	}
	if models == nil {
		models = []wire.Status{}
	}
	return t.env.Show(models, func() [][]string { return modelRows(t.env.Output, models) })
}

// modelRows returns the rows of the table of models, or of its CSV form.
func modelRows(form string, models []wire.Status) [][]string {
	if form == "csv" {
		return csvRows(models)
	}
	header := []string{"NAME", "TENANT", "STATE", "SIZE", "GPU", "REFS", "GEN"}
	if form == "wide" {
		header = append(header, "PUBLIC", "TENSORS", "LOADS", "SHA256", "SOURCE", "WHY")
	}
	rows := [][]string{header}
	for _, m := range models {
		state := m.State
		if m.State == wire.StateLoading && m.Bytes > 0 {
			state = fmt.Sprintf("%s %d%%", state, min(100, 100*m.Loaded/m.Bytes))
		}
		row := []string{
			m.Name, m.Tenant, state, mib(m.Bytes), mib(m.GPUBytes), strconv.Itoa(m.Refs), number(m.Generation),
		}
		if form == "wide" {
			row = append(row, strconv.FormatBool(m.Public), strconv.Itoa(m.Tensors), number(m.Loads), m.SHA256, m.Source, m.Why)
		}
		rows = append(rows, row)
	}
	return rows
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func mib(n int64) string { return fmt.Sprintf("%.1fMiB", gpu.Bytes(n).MiB()) }

// csvRows returns rows with the keys of the JSON form.
func csvRows(models []wire.Status) [][]string {
	rows := [][]string{{
		"name", "tenant", "public", "state", "bytes", "gpu_bytes", "tensors", "sha256", "generation", "refs", "source", "loads", "last_used",
	}}
	for _, m := range models {
		used := ""
		if m.LastUsed != nil {
			used = m.LastUsed.Format(time.RFC3339Nano)
		}
		rows = append(rows, []string{
			m.Name, m.Tenant, strconv.FormatBool(m.Public), m.State, number(m.Bytes), number(m.GPUBytes), strconv.Itoa(m.Tensors),
			m.SHA256, number(m.Generation), strconv.Itoa(m.Refs), m.Source, number(m.Loads), used,
		})
	}
	return rows
}
