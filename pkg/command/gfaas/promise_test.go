package gfaas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestPromise plans random demands on functions with different costs, starts each plan, and sends requests through a
// gateway at the demanded rates with Poisson arrivals. The p95 of each function must be within its objective, as
// gfaas-sim plan predicts for the same arrivals. The plan must need few GPUs more than a plan for steady arrivals.
// GFAAS_DEMANDS=50 (make promise) sets the number of demands, runs each for a minute and checks the results. Otherwise
// the test runs one small demand for two seconds and only logs the results, because timings need an idle host.
func TestPromise(t *testing.T) {
	demands, functions, long := 1, 3, 2*time.Second
	text := os.Getenv("GFAAS_DEMANDS")
	if text != "" {
		var err error
		if demands, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		functions, long = 8, time.Minute
	}
	seed := uint64(1)
	if text := os.Getenv("GFAAS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	w := newPromises(t, functions, text != "")
	var all, kept, predicted, gpus, steady int
	for n := range demands {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		d := w.random(r)
		if text == "" {
			for _, f := range d {
				f.rps, f.objective = min(f.rps, 10), 1000 // feasible even if the host is busier than when it was profiled
			}
		}
		planned := w.plan("plan.json", d)
		even := w.plan("steady.json", d, "--arrivals", "steady")
		gpus, steady = gpus+planned.GPUsUsed, steady+even.GPUsUsed
		results := w.drive("plan.json", d, long, r)
		for _, f := range results {
			all++
			if f.live <= 1.05*f.objective {
				kept++
			}
			if math.Abs(f.simulated-f.live) <= 0.15*f.live {
				predicted++
			}
			t.Logf("demand %2d %s: %6.1f a second, objective %6.1f ms: p95 %6.1f, predicted %6.1f; %d errors", n, f.name, f.rps, f.objective, f.live, f.simulated, f.errors)
			if f.errors > 0 {
				t.Errorf("demand %d: errors of %s: got %d, want 0", n, f.name, f.errors)
			}
		}
		t.Logf("demand %2d: %d GPUs, %d for steady arrivals; so far %d of %d within the objective, %d predicted, GPUs %d for %d", n, planned.GPUsUsed, even.GPUsUsed, kept, all, predicted, gpus, steady)
		if n%10 == 9 { // for comparison
			for _, f := range w.drive("steady.json", d, long, r) {
				t.Logf("demand %2d %s: plan for steady arrivals: p95 %6.1f of %6.1f ms, predicted %6.1f", n, f.name, f.live, f.objective, f.simulated)
			}
		}
	}
	if text == "" {
		return
	}
	if float64(kept) < 0.97*float64(all) {
		t.Errorf("functions within their objective: got %d of %d, want at least 97%%", kept, all)
	}
	if float64(predicted) < 0.9*float64(all) {
		t.Errorf("functions with a p95 within 15%% of the prediction: got %d of %d, want at least 90%%", predicted, all)
	}
	if float64(gpus) > 1.25*float64(steady) {
		t.Errorf("GPUs: got %d, want at most 1.25 times the %d of a plan for steady arrivals", gpus, steady)
	}
}

// promises is the environment of the test: a run directory and the profiled functions.
type promises struct {
	*testing.T
	dir    string
	env    []string
	maxRPS map[string]float64 // requests per second of an instance with a whole GPU
	alone  map[string]float64 // its latency for a single request, in ms
}

// demandResult is the demand on a function, with the results.
type demandResult struct {
	name            string
	rps             float64
	objective       float64 // of the p95, in ms
	live, simulated float64 // p95, in ms
	errors          int64
}

// newPromises applies and profiles functions whose calls take 2 to 25 ms on a whole GPU. Every second function has too few
// blocks for all multiprocessors.
func newPromises(t *testing.T, functions int, whole bool) *promises {
	dir, err := os.MkdirTemp("", "promise") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	w := &promises{T: t, dir: dir, maxRPS: map[string]float64{}, alone: map[string]float64{}, env: append(os.Environ(),
		"GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_STATE="+filepath.Join(dir, "state.db"), "GFAAS_SIM_DIR="+filepath.Join(dir, "sim"),
		"GFAAS_LIB_DIR="+built("lib"), "GFAAS_SIM_GPU=count=16", "GFAAS_SIM_NOTED=1", "XDG_CONFIG_HOME="+dir,
		"DOCKER_HOST=unix://"+filepath.Join(dir, "no-docker.sock"), "PATH="+built("bin")+":"+os.Getenv("PATH"))}
	t.Cleanup(func() {
		_, _ = w.run("gfaas", "down")
		_ = os.RemoveAll(dir)
	})
	ptx, err := os.ReadFile("../../../examples/saxpy/saxpy.ptx")
	if err != nil {
		t.Fatalf("read the kernel of saxpy: %v; run make first", err)
	}
	var text strings.Builder
	for n, blockUS := range []int{100, 150, 200, 300, 400, 600, 800, 1200}[:functions] {
		blocks := 320
		if n%2 == 1 {
			blocks, blockUS = 40, 4*blockUS // enough for half of the multiprocessors
		}
		file := filepath.Join(dir, fmt.Sprintf("f%d.ptx", n))
		w.write(file, strings.Replace(string(ptx), "block_us=500", fmt.Sprintf("block_us=%d", blockUS), 1))
		fmt.Fprintf(&text, "---\n{name: f%d, command: [%q], contract: http, gpu_mem: 256MiB, env: {SAXPY_PTX: %q, SAXPY_BLOCKS: %q}}\n",
			n, filepath.Join(built("examples"), "saxpy", "saxpy"), file, strconv.Itoa(blocks))
	}
	w.write(filepath.Join(dir, "f.yaml"), text.String())
	w.must("gfaas", "apply", "-q", "-f", "f.yaml")
	how := []string{"--sm", "50,100", "--quota", "1", "--duration", "2s", "--warmup", "200ms", "--precision", "0"}
	if whole {
		how = []string{"--sm", "12,24,50,100", "--quota", "0.4,1", "--duration", "2s", "--warmup", "500ms"}
	}
	w.must("gfaas-profile", append([]string{"run", "f.yaml", "-q", "--goodput=false", "--park=false", "--load", "closed:4", "--out-file", "profile.csv"}, how...)...)
	f, err := os.Open(filepath.Join(dir, "profile.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := profile.Read(f, "profile.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.SMPct == 100 && row.Quota == 1 {
			w.maxRPS[row.Function], w.alone[row.Function] = row.ThroughputRPS, row.WarmMS
		}
	}
	if len(w.maxRPS) != functions {
		t.Fatalf("profiled functions: got the rates %v, want %d functions", w.maxRPS, functions)
	}
	return w
}

// random returns a demand on some functions. Each has a rate that needs a fraction of a GPU, and an objective that is a
// multiple of the latency of a single request.
func (w *promises) random(r *rand.Rand) []*demandResult {
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	names := slices.Sorted(maps.Keys(w.maxRPS))
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	const fewest = 3
	var d []*demandResult
	for _, name := range names[:fewest+r.IntN(len(names)-fewest+1)] {
		d = append(d, &demandResult{name: name,
			rps:       math.Round(10*between(0.05, 0.6)*w.maxRPS[name]) / 10,
			objective: math.Round(max(20, between(6, 25)*w.alone[name])),
		})
	}
	return d
}

// plan plans a demand. All of it must be placed.
func (w *promises) plan(file string, d []*demandResult, flags ...string) plan.Plan {
	w.Helper()
	var text strings.Builder
	text.WriteString("function,rps,slo_ms\n")
	for _, f := range d {
		fmt.Fprintf(&text, "%s,%v,%v\n", f.name, f.rps, f.objective)
	}
	w.write(filepath.Join(w.dir, "demand.csv"), text.String())
	out := w.must("gfaas-place", append([]string{"plan", "-q", "--profile", "profile.csv", "--demand", "demand.csv", "--functions", "f.yaml",
		"--gpu-mem", "16GiB", "-o", "json"}, flags...)...)
	w.write(filepath.Join(w.dir, file), string(out))
	var p plan.Plan
	w.decode(out, &p)
	return p
}

// heldUp reports whether a load failed because no request finished in its short time, as after a pause of the host.
func heldUp(err error) bool {
	var failed *exec.ExitError
	return errors.As(err, &failed) && bytes.Contains(failed.Stderr, []byte("no request finished in"))
}

// drive starts a plan, loads each of its functions for the given time, and simulates the same arrivals.
func (w *promises) drive(file string, d []*demandResult, long time.Duration, r *rand.Rand) []demandResult {
	w.Helper()
	w.must("gfaas", "up", "-q", "--gpu", "sim", file)
	record := filepath.Join(w.dir, "record.jsonl")
	gateway := w.command("gfaas", "serve", "-q", "--listen", "", "--gpu", "sim", "--record", record)
	if err := gateway.Start(); err != nil {
		w.Fatal(err)
	}
	eventually(w.T, "the gateway is ready", func() bool { return w.command("gfaas", "scale", "-q").Run() == nil })
	results := make([]demandResult, len(d))
	var all sync.WaitGroup
	for n, f := range d {
		seed := r.Uint32()
		all.Go(func() {
			load := func() ([]byte, error) {
				return w.command("gfaas-profile", "load", f.name, "-q", "-o", "json", "--precision", "0", "--seed", strconv.Itoa(int(seed)),
					"--load", fmt.Sprintf("poisson:%v", f.rps), "--duration", long.String(), "--slo", fmt.Sprintf("%vms", f.objective)).Output()
			}
			out, err := load()
			for end := time.Now().Add(time.Minute); heldUp(err) && time.Now().Before(end); {
				out, err = load()
			}
			results[n] = *f
			var decoded struct {
				P95    float64 `json:"p95_ms"`
				Errors int64   `json:"errors"`
			}
			if err == nil {
				err = json.Unmarshal(out, &decoded)
			}
			if err != nil {
				w.Errorf("load %s: %v\n%s", f.name, err, out)
			}
			results[n].live, results[n].errors = decoded.P95, decoded.Errors
		})
	}
	all.Wait()
	_ = gateway.Process.Signal(syscall.SIGTERM)
	if err := gateway.Wait(); err != nil {
		w.Errorf("end of the gateway: %v", err)
	}
	w.must("gfaas", "down", "-q")

	w.write(filepath.Join(w.dir, "trace.csv"), string(w.must("gfaas-sim", "replay", record, "--as-trace")))
	// The exit status is 3 if an objective is missed.
	out, err := w.command("gfaas-sim", "plan", file, "-q", "--profile", "profile.csv", "--demand", "demand.csv", "--trace", "trace.csv", "-o", "json").Output()
	if code := exitStatus(err); code != 0 && code != 3 {
		w.Fatalf("gfaas-sim plan: %v\n%s", err, out)
	}
	var decoded struct {
		Functions []struct {
			Function string  `json:"function"`
			P95      float64 `json:"p95_ms"`
		} `json:"functions"`
	}
	w.decode(out, &decoded)
	for _, f := range decoded.Functions {
		for n := range results {
			if results[n].name == f.Function {
				results[n].simulated = f.P95
			}
		}
	}
	return results
}

func (w *promises) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(built("bin", name), args...)
	cmd.Dir, cmd.Env = w.dir, w.env
	return cmd
}

func (w *promises) run(name string, args ...string) ([]byte, error) {
	cmd := w.command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %v: %w\n%s", name, args, err, stderr.String())
	}
	return out, err
}

func (w *promises) must(name string, args ...string) []byte {
	w.Helper()
	out, err := w.run(name, args...)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

func (w *promises) write(path, text string) {
	w.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *promises) decode(text []byte, into any) {
	w.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		w.Fatalf("decode the output: %v: %s", err, text)
	}
}
