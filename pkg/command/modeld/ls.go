package modeld

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// askTime is how long the daemon may take to say how things stand.
const askTime = 5 * time.Second

// keys describes a model in JSON.
const keys = `{"name","tenant","public","state","bytes","gpu_bytes","tensors","sha256",
"generation","refs","source","loads","last_used"}, and "loaded_bytes" and "why"
(what it waits for) while it is being loaded. A state is gpu, loading, or file:
not on the GPU, to be loaded again when somebody asks. bytes is the file,
gpu_bytes the memory on the GPU (0 unless it is there), loads how often it was
loaded since the daemon began, refs how many hold it.`

func newList(t *tool) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the models that are known",
		Long:  "Lists the models that are known, on the GPU or not.\n\nJSON: a list of " + keys,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), t, tenant) },
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only what this tenant sees")
	t.env.Outputs(cmd, "table", "wide", "json", "yaml", "csv")
	return cmd
}

func list(ctx context.Context, t *tool, tenant string) error {
	if tenant != "" {
		if err := wire.CheckTenant(tenant); err != nil {
			return cli.Usagef("--tenant: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	all, err := client.Models(ctx, tenant)
	if err != nil {
		return explain(err)
	}
	if all == nil {
		all = []wire.Status{}
	}
	return t.env.Show(all, func() [][]string { return modelRows(t.env.Output, all) })
}

// modelRows are the models for people, or for programs as CSV.
func modelRows(form string, all []wire.Status) [][]string {
	if form == "csv" {
		return csvRows(all)
	}
	header := []string{"NAME", "TENANT", "STATE", "SIZE", "GPU", "REFS", "GEN"}
	if form == "wide" {
		header = append(header, "PUBLIC", "TENSORS", "LOADS", "SHA256", "SOURCE", "WHY")
	}
	rows := [][]string{header}
	for _, m := range all {
		state := m.State
		if m.State == wire.StateLoading && m.Bytes > 0 {
			state = fmt.Sprintf("%s %d%%", state, min(100, 100*m.Loaded/m.Bytes))
		}
		row := []string{
			m.Name, m.Tenant, state, mib(m.Bytes), mib(m.GPUBytes), strconv.Itoa(m.Refs), strconv.FormatInt(m.Generation, 10),
		}
		if form == "wide" {
			row = append(row, strconv.FormatBool(m.Public), strconv.Itoa(m.Tensors), strconv.FormatInt(m.Loads, 10), m.SHA256, m.Source, m.Why)
		}
		rows = append(rows, row)
	}
	return rows
}

func mib(n int64) string { return fmt.Sprintf("%.1fMiB", gpu.Bytes(n).MiB()) }

// csvRows have the keys of the JSON form.
func csvRows(all []wire.Status) [][]string {
	rows := [][]string{{
		"name", "tenant", "public", "state", "bytes", "gpu_bytes", "tensors", "sha256", "generation", "refs", "source", "loads", "last_used",
	}}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	for _, m := range all {
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
