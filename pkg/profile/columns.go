package profile

import (
	"io"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// columns are the columns of a profile, in the order in which it is written.
var columns = slices.Concat(basicColumns, goodputColumns, instanceColumns, limitColumns)

// basicColumns are the columns of every profile.
var basicColumns = []csvfile.Column[Row]{
	text("function", required, func(r *Row) *string { return &r.Function }),
	text("gpu", optional, func(r *Row) *string { return &r.GPU }),
	number("sm_pct", required, csvfile.Percent, func(r *Row) *float64 { return &r.SMPct }),
	number("quota", required, csvfile.Fraction, func(r *Row) *float64 { return &r.Quota }),
	batch(func(r *Row) *Config { return &r.Config }),
	number("throughput_rps", required, csvfile.Number, func(r *Row) *float64 { return &r.ThroughputRPS }),
	measured("p50_ms", func(r *Row) *float64 { return &r.P50MS }),
	number("p95_ms", required, csvfile.Number, func(r *Row) *float64 { return &r.P95MS }),
	measured("p99_ms", func(r *Row) *float64 { return &r.P99MS }),
	measured("gpu_mem_mib", func(r *Row) *float64 { return &r.GPUMemMiB }),
	measured("model_mem_mib", func(r *Row) *float64 { return &r.ModelMemMiB }),
	measured("gpu_util_pct", func(r *Row) *float64 { return &r.GPUUtilPct }),
	measured("sm_occupancy_pct", func(r *Row) *float64 { return &r.SMOccupancyPct }),
	count("errors", isTrial, func(r *Row) *int64 { return &r.Errors }),
	count("samples", isTrial, func(r *Row) *int64 { return &r.Samples }),
	measured("trial_s", func(r *Row) *float64 { return &r.TrialS }),
	measured("warm_ms", func(r *Row) *float64 { return &r.WarmMS }),
	measured("cold_ms", func(r *Row) *float64 { return &r.ColdMS }),
	measured("load_ms", func(r *Row) *float64 { return &r.LoadMS }),
	measured("throughput_ci_rps", func(r *Row) *float64 { return &r.ThroughputCIRPS }),
	measured("p95_ci_ms", func(r *Row) *float64 { return &r.P95CIMS }),
	count("unstable", isTrial, func(r *Row) *int64 { return &r.Unstable }),
	measured("power_w", func(r *Row) *float64 { return &r.PowerW }),
}

// goodputColumns are the columns of the goodput.
var goodputColumns = []csvfile.Column[Row]{
	{Name: "goodput_rps", Set: func(r *Row, cell string) (err error) {
		r.GoodputRPS, err = csvfile.Number(cell)
		r.GoodputKnown = true
		return err
	}, Print: func(r *Row) string {
		if !r.GoodputKnown {
			return ""
		}
		return csvfile.Format(r.GoodputRPS)
	}},
	measured("goodput_ci_rps", func(r *Row) *float64 { return &r.GoodputCIRPS }),
	measured("slo_ms", func(r *Row) *float64 { return &r.SLOMS }),
	measured("idle_p95_ms", func(r *Row) *float64 { return &r.IdleP95MS }),
}

// instanceColumns are the columns of several instances at once.
var instanceColumns = []csvfile.Column[Row]{instances()}

// MaxInstances is the largest number of instances of a row.
const MaxInstances = 256

func instances() csvfile.Column[Row] {
	parse := csvfile.Whole(1, MaxInstances)
	c := csvfile.Field("instances", func(cell string) (n int, err error) {
		if n, err = parse(cell); n == 1 {
			n = 0 // as without the column
		}
		return n, err
	}, func(row *Row) *int { return &row.Instances })
	c.Print = func(row *Row) string { return strconv.Itoa(row.Together()) }
	return c
}

// limitColumns are the columns of limits.
var limitColumns = []csvfile.Column[Row]{
	number("sm_limit_pct", optional, csvfile.Percent, func(r *Row) *float64 { return &r.SMLimitPct }),
	number("quota_limit", optional, csvfile.Fraction, func(r *Row) *float64 { return &r.QuotaLimit }),
}

// isTrial reports whether a row is from a trial. In other rows, a count of 0 means unknown.
func isTrial(r *Row) bool { return r.TrialS > 0 }

// Form selects the columns of a written profile.
type Form struct {
	// Goodput adds the columns of the goodput. Without it, a profile has the same form as
	// before goodput existed.
	Goodput bool
	// Instances adds the column with the number of instances.
	Instances bool
	// Limits adds the columns of the limits.
	Limits bool
}

// FormOf returns the form with the columns that the rows need.
func FormOf(rows []Row) Form {
	return Form{
		Goodput: slices.ContainsFunc(rows, func(r Row) bool {
			return r.GoodputKnown || r.SLOMS > 0 || r.GoodputCIRPS > 0 || r.IdleP95MS > 0
		}),
		Instances: slices.ContainsFunc(rows, func(r Row) bool { return r.Together() > 1 }),
		Limits:    slices.ContainsFunc(rows, func(r Row) bool { return r.SMLimitPct > 0 || r.QuotaLimit > 0 }),
	}
}

// Whole is the form with all columns.
var Whole = Form{Goodput: true, Instances: true, Limits: true}

// With returns the form with the columns of f and those that a file with the header needs.
func (f Form) With(header []string) Form {
	has := func(columns []csvfile.Column[Row]) bool {
		return slices.ContainsFunc(columns, func(c csvfile.Column[Row]) bool { return slices.Contains(header, c.Name) })
	}
	return Form{Goodput: f.Goodput || has(goodputColumns), Instances: f.Instances || has(instanceColumns), Limits: f.Limits || has(limitColumns)}
}

func (f Form) columns() []csvfile.Column[Row] {
	out := slices.Clone(basicColumns)
	if f.Goodput {
		out = append(out, goodputColumns...)
	}
	if f.Instances {
		out = append(out, instanceColumns...)
	}
	if f.Limits {
		out = append(out, limitColumns...)
	}
	return out
}

// Header returns the header of a profile.
func (f Form) Header() []string { return csvfile.Header(f.columns()) }

// Record returns the row's fields in the order of Header. Reading a number back yields the
// same value. A figure that was not measured is empty, so that it does not look like a
// measurement of 0.
func (f Form) Record(r Row) []string { return csvfile.Record(f.columns(), r) }

// Write writes a profile with its header and the columns that its rows need.
func Write(w io.Writer, rows []Row) error { return csvfile.Write(w, FormOf(rows).columns(), rows) }

// Values of the argument required of text and number.
const (
	optional = false
	required = true
)

// text returns a column of texts.
func text[T any](name string, required bool, field func(*T) *string) csvfile.Column[T] {
	c := csvfile.Field(name, csvfile.Name, field)
	c.Required, c.Print = required, func(row *T) string { return *field(row) }
	return c
}

// number returns a column of numbers. If it is not required, 0 is written as an empty cell.
func number[T any](name string, required bool, parse func(string) (float64, error), field func(*T) *float64) csvfile.Column[T] {
	c := csvfile.Field(name, parse, field)
	c.Required, c.Print = required, func(row *T) string {
		if v := *field(row); v != 0 || required {
			return csvfile.Format(v)
		}
		return ""
	}
	return c
}

// measured returns an optional column of a figure, which is 0 if it was not measured.
func measured(name string, field func(*Row) *float64) csvfile.Column[Row] {
	return number(name, optional, csvfile.Number, field)
}

// count returns an optional column of counts. A count of 0 is written as an empty cell unless
// it is known.
func count[T any](name string, known func(*T) bool, field func(*T) *int64) csvfile.Column[T] {
	c := csvfile.Field(name, csvfile.AtLeast[int64](0), field)
	c.Print = func(row *T) string {
		if v := *field(row); v != 0 || known(row) {
			return strconv.FormatInt(v, 10)
		}
		return ""
	}
	return c
}

// maxBatch is the largest batch of a row.
const maxBatch = 1 << 20

func batch[T any](config func(*T) *Config) csvfile.Column[T] {
	c := csvfile.Field("batch", csvfile.Whole(1, maxBatch), func(row *T) *int { return &config(row).Batch })
	c.Print = func(row *T) string { return strconv.Itoa(config(row).Batch) }
	return c
}
