package profile

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// file is where rows are written as they are measured; empty if not to a file.
func (o *runOptions) file(env *cli.Env) string {
	if o.resume != "" {
		return o.resume
	}
	if env.Output == "csv" && env.OutFile != "-" {
		return env.OutFile
	}
	return ""
}

// openOutput opens the journal and returns what it already has of the job.
func (o *runOptions) openOutput(env *cli.Env, j job, model string) (journal, map[cell]profile.Row, error) {
	path := o.file(env)
	for _, file := range []string{path, o.junit, env.OutFile} {
		if file == "" || file == "-" {
			continue
		}
		if err := creatable(file); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case o.resume != "":
		p, out, err := goOn(path)
		if err != nil {
			return nil, nil, err
		}
		if p.torn {
			env.Notef("%s ends in a part of a line: it is dropped", path)
		}
		old, err := sift(p.rows, path, j, model)
		return out, old, err
	case path != "":
		return &fileJournal{path: path}, nil, nil
	case env.Output == "csv":
		return &stream{out: env.Out}, nil, nil
	}
	return discard{}, nil, nil
}

// sift checks that the rows of an earlier run are of this job's functions and
// GPU, and keeps those of its configurations.
func sift(rows []profile.Row, path string, j job, model string) (map[cell]profile.Row, error) {
	names := map[string]bool{}
	wanted := map[cell]bool{}
	for _, fn := range j.functions {
		names[fn.Name] = true
		for _, c := range j.space.Configs() {
			wanted[cell{fn.Name, c}] = true
		}
	}
	old := map[cell]profile.Row{}
	for _, row := range rows {
		if !names[row.Function] {
			return nil, fmt.Errorf("%s:%d: function: %q, expected a function of this run", path, row.Line, row.Function)
		}
		if row.GPU != model {
			return nil, fmt.Errorf("%s:%d: gpu: %q, expected %q, on which this run measures", path, row.Line, row.GPU, model)
		}
		if c := (cell{row.Function, row.Config}); wanted[c] {
			old[c] = row
		}
	}
	return old, nil
}

// jsonRow is a row under -o json: the columns of the profile by name, without
// those that were not measured.
type jsonRow struct {
	Function        string  `json:"function"`
	GPU             string  `json:"gpu,omitempty"`
	SMPct           float64 `json:"sm_pct"`
	Quota           float64 `json:"quota"`
	Batch           int     `json:"batch"`
	ThroughputRPS   float64 `json:"throughput_rps"`
	P50MS           float64 `json:"p50_ms"`
	P95MS           float64 `json:"p95_ms"`
	P99MS           float64 `json:"p99_ms"`
	GPUMemMiB       float64 `json:"gpu_mem_mib,omitempty"`
	Errors          int64   `json:"errors"`
	Samples         int64   `json:"samples"`
	TrialS          float64 `json:"trial_s"`
	WarmMS          float64 `json:"warm_ms,omitempty"`
	ColdMS          float64 `json:"cold_ms,omitempty"`
	LoadMS          float64 `json:"load_ms,omitempty"`
	ModelMemMiB     float64 `json:"model_mem_mib,omitempty"`
	GPUUtilPct      float64 `json:"gpu_util_pct,omitempty"`
	SMOccupancyPct  float64 `json:"sm_occupancy_pct,omitempty"`
	PowerW          float64 `json:"power_w,omitempty"`
	ThroughputCIRPS float64 `json:"throughput_ci_rps,omitempty"`
	P95CIMS         float64 `json:"p95_ci_ms,omitempty"`
	Unstable        int64   `json:"unstable"`
}

// show prints all rows, for -o json and -o table.
func show(env *cli.Env, rows []profile.Row) error {
	list := make([]jsonRow, len(rows))
	for i, r := range rows {
		list[i] = jsonRow{
			Function: r.Function, GPU: r.GPU, SMPct: r.SMPct, Quota: r.Quota, Batch: r.Batch,
			ThroughputRPS: r.ThroughputRPS, P50MS: r.P50MS, P95MS: r.P95MS, P99MS: r.P99MS,
			GPUMemMiB: r.GPUMemMiB, Errors: r.Errors, Samples: r.Samples, TrialS: r.TrialS,
			WarmMS: r.WarmMS, ColdMS: r.ColdMS, LoadMS: r.LoadMS, ModelMemMiB: r.ModelMemMiB,
			GPUUtilPct: r.GPUUtilPct, SMOccupancyPct: r.SMOccupancyPct, PowerW: r.PowerW,
			ThroughputCIRPS: r.ThroughputCIRPS, P95CIMS: r.P95CIMS, Unstable: r.Unstable,
		}
	}
	return env.Show(list, func() [][]string { return table(rows) })
}

// table is the rows for a person.
func table(rows []profile.Row) [][]string {
	lines := [][]string{{"FUNCTION", "GPU", "SM%", "QUOTA", "BATCH", "RPS", "±95%", "P50 MS", "P95 MS", "P99 MS", "MEM MIB", "ERRORS", "RPS/GPU"}}
	for _, r := range rows {
		mem := "-"
		if r.GPUMemMiB > 0 {
			mem = number.Fixed(r.GPUMemMiB, 1)
		}
		lines = append(lines, []string{
			r.Function, r.GPU, number.Plain(r.SMPct), number.Plain(r.Quota), strconv.Itoa(r.Batch),
			number.Fixed(r.ThroughputRPS, 1), spread(r), number.Fixed(r.P50MS, 1), number.Fixed(r.P95MS, 1),
			number.Fixed(r.P99MS, 1), mem, strconv.FormatInt(r.Errors, 10), number.Fixed(r.Efficacy(), 1),
		})
	}
	return lines
}

// spread is how well the throughput is known.
func spread(r profile.Row) string {
	text := "-"
	if r.ThroughputCIRPS > 0 && r.ThroughputRPS > 0 {
		text = number.Percent(r.ThroughputCIRPS/r.ThroughputRPS, 1)
	}
	if r.Unstable > 0 {
		text += " unstable"
	}
	return text
}

// hinted is an error with a hint, whose exit status stays its own.
type hinted struct {
	error
	hint string
}

func (h hinted) Hint() string  { return h.hint }
func (h hinted) Unwrap() error { return h.error }

// withHint adds a hint to an error that has none.
func withHint(err error, hint string) error {
	var known interface{ Hint() string }
	var chosen *cli.Error
	if hint == "" || errors.As(err, &known) || errors.As(err, &chosen) {
		return err
	}
	return hinted{err, hint}
}
