package profile

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/number"
)

// list is a flag that takes a comma-separated list of numbers. Setting it again replaces the list.
type list[T int | float64] struct {
	values *[]T
	parse  func(string) (T, error)
	show   func(T) string
}

func floats(values *[]float64, standard ...float64) *list[float64] {
	*values = standard
	return &list[float64]{values, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, number.Plain}
}

// fractions returns a flag that takes a list of fractions, such as 0.2 or 20%.
func fractions(values *[]float64, standard ...float64) *list[float64] {
	*values = standard
	return &list[float64]{values, gpu.ParseFraction, number.Plain}
}

func ints(values *[]int, standard ...int) *list[int] {
	*values = standard
	return &list[int]{values, strconv.Atoi, strconv.Itoa}
}

// Set parses a list such as 6,12,24.
func (l *list[T]) Set(text string) error {
	*l.values = nil
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for field := range strings.SplitSeq(text, ",") {
		v, err := l.parse(strings.TrimSpace(field))
		if err != nil {
			return fmt.Errorf("invalid number %q", field)
		}
		*l.values = append(*l.values, v)
	}
	return nil
}

// String returns the numbers in the form that Set accepts.
func (l *list[T]) String() string {
	return strings.Join(lists.Map(*l.values, l.show), ",")
}

// Type returns the name of the value in the help text.
func (l *list[T]) Type() string { return "list" }

// checkList returns a usage error if the list of a flag is empty, contains a duplicate, or contains a
// value that ok rejects.
func checkList[T int | float64](flag string, values []T, show func(T) string, ok func(T) bool, want string) error {
	if len(values) == 0 {
		return cli.Usagef("--%s is empty: expected %s", flag, want)
	}
	for i, v := range values {
		if !ok(v) {
			return cli.Usagef("--%s %s: expected %s", flag, show(v), want)
		}
		if slices.Contains(values[:i], v) {
			return cli.Usagef("--%s %s is given twice: expected each value once", flag, show(v))
		}
	}
	return nil
}

// loadFlags adds the flags that describe the load of a trial.
func loadFlags(cmd *cobra.Command, o *load.Options, spec *string, precision float64) {
	f := cmd.Flags()
	f.DurationVar(&o.Duration, "duration", 10*time.Second, "minimum length of the measured period")
	f.DurationVar(&o.Warmup, "warmup", 2*time.Second, "minimum time under load before the measured period")
	f.Float64Var(&o.Precision, "precision", precision, "required precision of the throughput, as a fraction; 0 measures for exactly --duration")
	f.StringVar(spec, "load", "closed:8", "load: closed:N (requests in progress), poisson:RPS (requests per second) or max")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random times of a poisson load")
	cli.CompleteWords(cmd, "load", "closed:", "poisson:", "max")
}

// checkLoad validates --slo and the flags of loadFlags, and parses the load into the options.
func checkLoad(o *load.Options, spec string, slo time.Duration) (err error) {
	switch {
	case o.Duration <= 0:
		return cli.Usagef("--duration %v: expected more than 0", o.Duration)
	case o.Warmup < 0:
		return cli.Usagef("--warmup %v: expected 0 or more", o.Warmup)
	case !(o.Precision >= 0 && o.Precision < 1):
		return cli.Usagef("--precision %s: expected a fraction of at least 0 and below 1", number.Plain(o.Precision))
	case slo < 0:
		return cli.Usagef("--slo %v: expected more than 0", slo)
	}
	if o.Spec, err = load.ParseSpec(spec); err != nil {
		return cli.Usagef("--load: %w", err)
	}
	return nil
}

// maxBatch is the largest batch size of a profile.
const maxBatch = 1 << 20

// percentage is a flag that takes a percentage, with or without a percent sign, and stores it as a
// fraction.
type percentage struct {
	value *float64
	set   *bool
}

func (p percentage) Set(text string) error {
	v, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(v >= 0 && v <= 1000) {
		return fmt.Errorf("expected a percentage from 0 to 1000, like 5%%")
	}
	*p.value, *p.set = v/100, true
	return nil
}

func (p percentage) String() string { return number.Significant(100**p.value, 3) + "%" }
func (p percentage) Type() string   { return "percentage" }

// maxBody is the size limit of a request body, in bytes. Each request in flight holds a copy.
const maxBody = 256 << 20

// readBody reads the file of --body. It returns no body for an empty path, and reads standard input for "-".
func readBody(env *cli.Env, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return cli.Load(env, path, func(r io.Reader, _ string) ([]byte, error) {
		body, err := io.ReadAll(io.LimitReader(r, maxBody+1))
		if err == nil && len(body) > maxBody {
			err = fmt.Errorf("the body in %s is longer than %d bytes", path, maxBody)
		}
		return body, err
	})
}

// parseGPUs parses --gpu and returns the canonical names of the GPUs.
func parseGPUs(list string) ([]string, error) {
	names := strings.Split(list, ",")
	for i, name := range names {
		d, err := gpu.ParseDevice(strings.TrimSpace(name))
		if err != nil {
			return nil, cli.Usagef("--gpu: %w", err)
		}
		if names[i] = d.String(); slices.Contains(names[:i], names[i]) {
			return nil, cli.Usagef("--gpu %s: %s is given twice", list, names[i])
		}
	}
	return names, nil
}
