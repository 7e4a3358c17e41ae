package trace

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// absent marks a duration that the file does not give.
const absent = time.Duration(-1)

// ReadFunctions reads function costs; name is what messages call the file.
// What is missing is filled in by R3 of docs/simulation.md. A profile will do
// too, if it has rows of one GPU model for each function; else it fails with a
// *ModelsError.
func ReadFunctions(r io.Reader, name string) ([]Function, error) {
	return ReadFunctionsOn("")(r, name)
}

// ReadFunctionsOn returns a ReadFunctions for a GPU model: of a profile only the rows
// that hold for that model count. A note names the functions that have none; for these
// nothing is returned.
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
	for _, names := range called {
		if text := both(header(data), name, names); text != "" {
			textfile.Notef(r, "%s", text)
		}
	}
	blank := func() Function { return Function{Weight: 1, Cold: absent} }
	lines, err := csvfile.Read(file, name, costColumns(header(data)), blank)
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, fault(name, 1, "", "the file has no functions, expected a line for each")
	}
	if err := csvfile.Unique(lines, name, "function", func(f Function) string { return f.Name }); err != nil {
		return nil, err
	}
	functions := make([]Function, len(lines))
	for i, line := range lines {
		f := line.Value
		f.Line = line.Line
		if f.Cold == absent {
			f.Cold = f.Warm + f.Load
		}
		if f.Model == "" {
			f.Model = f.Name
		}
		functions[i] = f
	}
	return functions, nil
}

// header is the names of the first line that is not blank.
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

// called are columns of the format and the names that are accepted in their place;
// of mem_mb beside mem_mib, which begins like it, csvfile tells.
var called = [][2]string{{"function", "func_name"}, {"warm_ms", "warm_dur_ms"}, {"cold_ms", "cold_dur_ms"}}

// both says that a header has a column under two names; empty when it has not.
func both(header []string, file string, names [2]string) string {
	if !slices.Contains(header, names[0]) || !slices.Contains(header, names[1]) {
		return ""
	}
	return fault(file, 1, names[1], "ignored, since there is a column %s", names[0]).Error()
}

// either is the name a column goes by in that header: another one only when
// the format's own is not there.
func either(header []string, name, other string) string {
	if !slices.Contains(header, name) && slices.Contains(header, other) {
		return other
	}
	return name
}

func costColumns(header []string) []csvfile.Column[Function] {
	text := func(name string, required bool, at func(*Function) *string) csvfile.Column[Function] {
		return csvfile.Column[Function]{Name: name, Required: required, Set: func(f *Function, cell string) (err error) {
			*at(f), err = csvfile.Name(cell)
			return err
		}}
	}
	duration := func(name string, required bool, at func(*Function) *time.Duration) csvfile.Column[Function] {
		return csvfile.Column[Function]{Name: name, Required: required, Set: func(f *Function, cell string) (err error) {
			*at(f), err = millis(cell)
			return err
		}}
	}
	return []csvfile.Column[Function]{
		text(either(header, "function", "func_name"), true, func(f *Function) *string { return &f.Name }),
		duration(either(header, "warm_ms", "warm_dur_ms"), true, func(f *Function) *time.Duration { return &f.Warm }),
		duration(either(header, "cold_ms", "cold_dur_ms"), false, func(f *Function) *time.Duration { return &f.Cold }),
		duration("load_ms", false, func(f *Function) *time.Duration { return &f.Load }),
		{Name: either(header, "mem_mib", "mem_mb"), Set: func(f *Function, cell string) (err error) {
			f.MemMiB, err = csvfile.Number(cell)
			return err
		}},
		{Name: "weight", Set: func(f *Function, cell string) (err error) {
			f.Weight, err = csvfile.Positive(cell)
			return err
		}},
		text("tenant", false, func(f *Function) *string { return &f.Tenant }),
		text("model", false, func(f *Function) *string { return &f.Model }),
	}
}

// functionsHeader is the first line of function costs: every column of the
// format.
func functionsHeader() []string {
	return []string{"function", "warm_ms", "cold_ms", "load_ms", "mem_mib", "weight", "tenant", "model"}
}

// WriteFunctions writes function costs with all columns, header first.
func WriteFunctions(w io.Writer, functions []Function) error {
	out := csv.NewWriter(w)
	if err := out.Write(functionsHeader()); err != nil {
		return err
	}
	for _, f := range functions {
		record := []string{f.Name, Millis(f.Warm), Millis(f.Cold), Millis(f.Load),
			csvfile.Format(f.MemMiB), csvfile.Format(f.Weight), f.Tenant, f.Model}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// isProfile tells profiles from function costs by their columns.
func isProfile(header []string) bool {
	return slices.Contains(header, "sm_pct") && slices.Contains(header, "quota")
}

// fromProfile takes the costs of functions from a profile: for each from the
// row that is most like having the GPU to itself, as invocations have it in a
// simulation. That is, of those with warm_ms, the one with the most SMs, then
// the largest quota, then the smallest batch.
func fromProfile(file io.Reader, name, model string) ([]Function, error) {
	rows, err := profile.Read(file, name)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fault(name, 1, "", "the file has no functions, expected a line for each")
	}
	rows, others := profile.On(rows, model), rows
	for _, lacking := range profile.Lacking(others, model) {
		textfile.Notef(file, "%s: no row of %s is of the GPU model %s (rows are of %s): nothing is known of its costs",
			name, lacking.Function, csvfile.Quote(model), profile.Quoted(lacking.Models))
	}
	var functions []Function
	of := map[string][]profile.Row{}
	for _, r := range rows {
		if known := of[r.Function]; known == nil {
			functions = append(functions, Function{Name: r.Function})
		} else if known[0].GPU != r.GPU {
			if model != "" {
				of[r.Function] = append(known, r) // one of the two names no model
				continue
			}
			return nil, &ModelsError{fault(name, r.Line, "gpu", "%s of function %s, which line %d has on %s: expected one model of GPU",
				csvfile.Quote(r.GPU), csvfile.Quote(r.Function), known[0].Line, csvfile.Quote(known[0].GPU))}
		}
		of[r.Function] = append(of[r.Function], r)
	}
	for i, f := range functions {
		measured := slices.DeleteFunc(slices.Clone(of[f.Name]), func(r profile.Row) bool { return r.WarmMS <= 0 })
		if len(measured) == 0 {
			return nil, fault(name, of[f.Name][0].Line, "warm_ms", "no configuration of function %s has it, expected one that does", csvfile.Quote(f.Name))
		}
		functions[i] = costs(slices.MaxFunc(measured, alone))
	}
	return functions, nil
}

// alone orders rows by how much of the GPU they have.
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
