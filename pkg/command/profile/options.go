package profile

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
)

// runOptions are the flags of run, as given.
type runOptions struct {
	sm, quota     []float64
	batch         []int
	duration      time.Duration
	warmup        time.Duration
	precision     float64
	startTimeout  time.Duration
	load          string
	seed          uint64
	search        string
	slo           time.Duration
	error         float64
	checkQuota    bool
	resume        string
	failIf        []string
	baseline      string
	regression    float64 // fraction
	junit         string
	regressionSet bool
	gpu           string
	share         bool
	park          bool
	body          string
	function      string
}

// job is what run has been asked for, checked.
type job struct {
	functions []function.Function
	space     search.Space
	search    string
	slo       time.Duration // for every function; 0: each function's own
	error     float64
	// checkQuota has the search try whether throughput is in proportion to it.
	checkQuota bool
	load       load.Options
	park       bool // load_ms too
	gates      []gate
	baseline   *baseline // nil without
	body       []byte
}

// check turns the flags into a job. Everything that can be wrong about them is
// said before anything is started.
func (o *runOptions) check(env *cli.Env, path string) (job, error) {
	j := job{search: o.search, slo: o.slo, error: o.error, checkQuota: o.checkQuota, park: o.park, space: search.Space{SMPct: o.sm, Quota: o.quota, Batch: o.batch}}
	if err := o.checkSpace(); err != nil {
		return j, err
	}
	if err := o.checkFiles(env, path); err != nil {
		return j, err
	}
	if _, err := search.New(o.search, j.space, search.Goal{}); err != nil {
		return j, cli.Fail(cli.ExitUsage, "", err)
	}
	spec, err := load.ParseSpec(o.load)
	if err != nil {
		return j, cli.Usagef("--load: %w", err)
	}
	j.load = load.Options{Spec: spec, Warmup: o.warmup, Duration: o.duration, Precision: o.precision, Seed: o.seed}
	for _, text := range o.failIf {
		g, err := parseGate(text)
		if err != nil {
			return j, cli.Usagef("--fail-if: %w", err)
		}
		j.gates = append(j.gates, g)
	}
	if j.functions, err = o.chooseFunctions(env, path); err != nil {
		return j, err
	}
	for _, g := range j.gates {
		if !g.reaches(j.functions, j.space) {
			return j, cli.Usagef("--fail-if %q: no configuration to be measured is at %s", g, g.place())
		}
	}
	j.body, err = readBody(env, o.body)
	return j, err
}

// checkSpace checks the lists and durations.
func (o *runOptions) checkSpace() error {
	if err := checkList("sm", o.sm, number.Plain, func(v float64) bool { return v > 0 && v <= 100 },
		"percentages above 0 and at most 100"); err != nil {
		return err
	}
	if err := checkList("quota", o.quota, number.Plain, func(v float64) bool { return v > 0 && v <= 1 },
		"fractions above 0 and at most 1"); err != nil {
		return err
	}
	if err := checkList("batch", o.batch, strconv.Itoa, func(v int) bool { return v >= 1 && v <= maxBatch },
		"whole numbers from 1 to "+strconv.Itoa(maxBatch)); err != nil {
		return err
	}
	switch {
	case o.duration <= 0:
		return cli.Usagef("--duration %v: expected more than 0", o.duration)
	case o.warmup < 0:
		return cli.Usagef("--warmup %v: expected 0 or more", o.warmup)
	case !(o.precision >= 0 && o.precision < 1):
		return cli.Usagef("--precision %s: expected a fraction of at least 0 and below 1", number.Plain(o.precision))
	case o.slo < 0:
		return cli.Usagef("--slo %v: expected more than 0", o.slo)
	case !(o.error > 0 && o.error < 1):
		return cli.Usagef("--error %s: expected a fraction above 0 and below 1", number.Plain(o.error))
	case o.startTimeout <= 0:
		return cli.Usagef("--start-timeout %v: expected more than 0", o.startTimeout)
	}
	return nil
}

// checkFiles checks where rows go and which GPU is meant.
func (o *runOptions) checkFiles(env *cli.Env, path string) error {
	if env.Output != "csv" || o.resume == "" { // or else the rows are in that file
		if err := env.CheckOutput("junit", o.junit); err != nil {
			return err
		}
	}
	switch {
	case o.junit != "" && o.junit == o.resume:
		return cli.Usagef("--junit %s: the rows go to that file, expected another", o.junit)
	case path == "-" && o.body == "-":
		return cli.Usagef("the function file and --body cannot both be standard input")
	case o.resume == "-":
		return cli.Usagef("--resume -: expected a file, since rows are appended to it")
	case o.resume != "" && env.Output == "csv" && env.OutFile != "" && env.OutFile != o.resume:
		return cli.Usagef("--resume %s and --out-file %s both say where rows go: expected one of them", o.resume, env.OutFile)
	case o.baseline == "-":
		return cli.Usagef("--baseline -: expected a file")
	case o.baseline == "" && o.regressionSet:
		return cli.Usagef("--max-regression needs --baseline, which it is compared with")
	case o.gpu != "":
		_, err := lanes(o.gpu, nil)
		return err
	}
	return nil
}

// maxBatch is the largest batch size that a profile may hold.
const maxBatch = 1 << 20

// checkList checks the values of a flag that takes a list.
func checkList[T int | float64](flag string, values []T, show func(T) string, ok func(T) bool, want string) error {
	if len(values) == 0 {
		return cli.Usagef("--%s is empty: expected %s", flag, want)
	}
	for i, v := range values {
		if !ok(v) {
			return cli.Usagef("--%s %s: expected %s", flag, show(v), want)
		}
		if slices.Contains(values[:i], v) {
			return cli.Usagef("--%s %s is given twice: expected each only once", flag, show(v))
		}
	}
	return nil
}

// chooseFunctions reads the functions to measure.
func (o *runOptions) chooseFunctions(env *cli.Env, path string) ([]function.Function, error) {
	all, err := cli.LoadFunctions(env, path)
	if err != nil {
		return nil, err
	}
	if o.function == "" {
		return all, nil
	}
	names := make([]string, len(all))
	for i, fn := range all {
		if fn.Name == o.function {
			return all[i : i+1], nil
		}
		names[i] = fn.Name
	}
	return nil, cli.Usagef("--function %s: %s has %s", o.function, path, strings.Join(names, ", "))
}

// readBody reads what every request carries.
func readBody(env *cli.Env, path string) ([]byte, error) {
	switch path {
	case "":
		return nil, nil
	case "-":
		return io.ReadAll(env.In)
	}
	return os.ReadFile(path)
}
