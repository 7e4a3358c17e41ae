package trace

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// maxInflight is the limit on Function.Inflight.
const maxInflight = 4096

// absent marks a duration that is missing in the file.
const absent = time.Duration(-1)

// ReadFunctionsOn returns a function that reads function costs; name is the file's name in messages. It completes
// missing values by rule R3 of docs/simulation.md. It also accepts a profile that has rows of only one GPU model for
// each function, and otherwise returns a *ModelsError. If model is not empty, it uses only those rows of a
// profile that apply to that GPU model, omits functions without such rows, and names them in a note.
func ReadFunctionsOn(model string) func(r io.Reader, name string) ([]Function, error) {
	return func(r io.Reader, name string) ([]Function, error) { return readFunctions(r, name, model) }
}

// ModelsError reports a profile with rows of several GPU models for one function.
type ModelsError struct{ err error }

func (e *ModelsError) Error() string { return e.err.Error() }
func (e *ModelsError) Unwrap() error { return e.err }

func readFunctions(r io.Reader, name, model string) ([]Function, error) {
	data, err := csvfile.ReadAll(r, name)
	if err != nil {
		return nil, err
	}
	file := textfile.Instead(r, bytes.NewReader(data))
	if isProfile(header(data)) {
		return fromProfile(file, name, model)
	}
	for _, names := range alternativeNames {
		if text := conflictNote(header(data), name, names); text != "" {
			textfile.Notef(r, "%s", text)
		}
	}
	blank := func(line int) Function { return Function{Weight: 1, Cold: absent, Line: line} }
	functions, err := csvfile.Read(file, name, costColumns(header(data)), blank)
	if err != nil {
		return nil, err
	}
	if len(functions) == 0 {
		return nil, fault(name, 1, "", "the file has no functions, expected a line for each function")
	}
	if err := csvfile.Unique(functions, name, "function", func(f Function) (string, int) { return f.Name, f.Line }); err != nil {
		return nil, err
	}
	for i := range functions {
		f := &functions[i]
		if f.Cold == absent {
			f.Cold = f.Warm + f.Load
		}
		if f.Model == "" {
			f.Model = f.Name
		}
	}
	return functions, nil
}

// header returns the column names, from the first line that is not blank.
func header(data []byte) []string {
	in := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\uFEFF"))))
	first, err := in.Read()
	if err != nil {
		return nil
	}
	for i := range first {
		first[i] = strings.TrimSpace(first[i])
	}
	return first
}

// alternativeNames lists columns with an accepted alternative name. Package csvfile itself
// reports mem_mb next to mem_mib.
var alternativeNames = [][2]string{{"function", "func_name"}, {"warm_ms", "warm_dur_ms"}, {"cold_ms", "cold_dur_ms"}}

// conflictNote returns a note if a header has a column under both names, and "" otherwise.
func conflictNote(header []string, file string, names [2]string) string {
	if !slices.Contains(header, names[0]) || !slices.Contains(header, names[1]) {
		return ""
	}
	return fault(file, 1, names[1], "ignored, because there is a column %s", names[0]).Error()
}

// columnName returns the name of a column in the header: the alternative name only if the
// regular one is missing.
func columnName(header []string, name, alternative string) string {
	if !slices.Contains(header, name) && slices.Contains(header, alternative) {
		return alternative
	}
	return name
}

// costColumns returns the columns of function costs, in the order in which they are written.
// It uses the alternative names that the header has.
func costColumns(header []string) []csvfile.Column[Function] {
	text := func(name string, field func(*Function) *string) csvfile.Column[Function] {
		c := csvfile.Field(name, csvfile.Name, field)
		c.Print = func(f *Function) string { return *field(f) }
		return c
	}
	duration := func(name string, field func(*Function) *time.Duration) csvfile.Column[Function] {
		c := csvfile.Field(name, millis[string], field)
		c.Print = func(f *Function) string { return Millis(*field(f)) }
		return c
	}
	number := func(name string, parse func(string) (float64, error), field func(*Function) *float64) csvfile.Column[Function] {
		c := csvfile.Field(name, parse, field)
		c.Print = func(f *Function) string { return csvfile.Format(*field(f)) }
		return c
	}
	inflight := csvfile.Field("inflight", csvfile.Whole(1, maxInflight), func(f *Function) *int { return &f.Inflight })
	inflight.Print = func(f *Function) string {
		if f.Inflight == 0 {
			return ""
		}
		return strconv.Itoa(f.Inflight)
	}
	columns := []csvfile.Column[Function]{
		text(columnName(header, "function", "func_name"), func(f *Function) *string { return &f.Name }),
		duration(columnName(header, "warm_ms", "warm_dur_ms"), func(f *Function) *time.Duration { return &f.Warm }),
		duration(columnName(header, "cold_ms", "cold_dur_ms"), func(f *Function) *time.Duration { return &f.Cold }),
		duration("load_ms", func(f *Function) *time.Duration { return &f.Load }),
		number(columnName(header, "mem_mib", "mem_mb"), csvfile.Number, func(f *Function) *float64 { return &f.MemMiB }),
		number("weight", csvfile.Positive, func(f *Function) *float64 { return &f.Weight }),
		text("tenant", func(f *Function) *string { return &f.Tenant }),
		text("model", func(f *Function) *string { return &f.Model }),
		inflight,
		number("batch_slope", csvfile.Number, func(f *Function) *float64 { return &f.BatchSlope }),
		duration("shared_start_ms", func(f *Function) *time.Duration { return &f.SharedStart }),
		number("weights_mib", csvfile.Number, func(f *Function) *float64 { return &f.WeightsMiB }),
	}
	columns[0].Required, columns[1].Required = true, true
	return columns
}

// WriteFunctions writes function costs with all columns, after a header. It omits the columns about
// shared weights if no function has them, and then those about batches as well.
func WriteFunctions(w io.Writer, functions []Function) error {
	columns := costColumns(nil)
	for _, used := range []func(Function) bool{
		func(f Function) bool { return f.SharedStart > 0 || f.WeightsMiB > 0 },
		func(f Function) bool { return f.Inflight > 0 || f.BatchSlope > 0 },
	} {
		if slices.ContainsFunc(functions, used) {
			break
		}
		columns = columns[:len(columns)-2]
	}
	return csvfile.Write(w, columns, functions)
}

// isProfile distinguishes a profile from function costs by its columns.
func isProfile(header []string) bool {
	return slices.Contains(header, "sm_pct") && slices.Contains(header, "quota")
}

// fromProfile returns the costs of functions from a profile. A simulated invocation has the
// GPU to itself, so fromProfile uses the most similar row of each function: among the rows
// with warm_ms, the one with the most SMs, then the largest quota, then the smallest batch.
func fromProfile(file io.Reader, name, model string) ([]Function, error) {
	rows, err := profile.Read(file, name)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fault(name, 1, "", "the file has no functions, expected a line for each function")
	}
	rows, others := profile.On(rows, model), rows
	for _, lacking := range profile.Lacking(others, model) {
		textfile.Notef(file, "%s: no row of %s is for the GPU model %s (rows are for %s), so its costs are unknown",
			name, lacking.Function, csvfile.Quote(model), profile.Quoted(lacking.Models))
	}
	var functions []Function
	of := map[string][]profile.Row{}
	for _, r := range rows {
		if known := of[r.Function]; known == nil {
			functions = append(functions, Function{Name: r.Function})
		} else if known[0].GPU != r.GPU {
			if model != "" {
				of[r.Function] = append(known, r) // one of the two rows names no model
				continue
			}
			return nil, &ModelsError{fault(name, r.Line, "gpu", "%s for function %s, but line %d has %s: expected one GPU model",
				csvfile.Quote(r.GPU), csvfile.Quote(r.Function), known[0].Line, csvfile.Quote(known[0].GPU))}
		}
		of[r.Function] = append(of[r.Function], r)
	}
	for i, f := range functions {
		measured := slices.DeleteFunc(slices.Clone(of[f.Name]), func(r profile.Row) bool { return r.WarmMS <= 0 })
		if len(measured) == 0 {
			return nil, fault(name, of[f.Name][0].Line, "warm_ms", "empty in all configurations of function %s, expected a value in at least one", csvfile.Quote(f.Name))
		}
		like := slices.MaxFunc(measured, alone)
		functions[i] = costs(like)
		functions[i].BatchSlope, _ = profile.BatchSlope(measured, like.SMPct, like.Quota)
	}
	return functions, nil
}

// alone compares rows by their part of the GPU.
func alone(a, b profile.Row) int {
	return cmp.Or(cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.Quota, b.Quota), cmp.Compare(b.Batch, a.Batch))
}

func costs(r profile.Row) Function {
	ms := func(v float64) time.Duration { return time.Duration(math.Round(v * 1e6)) }
	f := Function{
		Name: r.Function, Warm: ms(r.WarmMS), Load: ms(r.LoadMS), Cold: ms(r.ColdMS),
		MemMiB: r.GPUMemMiB, Weight: 1, Model: r.Function, Line: r.Line,
	}
	if f.Cold == 0 {
		f.Cold = f.Warm + f.Load
	}
	return f
}
