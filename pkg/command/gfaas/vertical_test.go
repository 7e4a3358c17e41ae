package gfaas

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
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
)

// verticalInfer is a function with a latency objective, which computes for 20 ms on the whole simulated GPU.
var verticalInfer = fmt.Sprintf("{name: infer, command: [%q], contract: http, slo: 150ms, gpu_mem: 64MiB, env: {SAXPY_BLOCKS: \"1600\", SAXPY_LAUNCHES: \"2\", SAXPY_STREAMS: \"1\"}}\n", saxpy)

// verticalTrain is a training job with kernels of 0.5 ms on the whole GPU, and of 1.4 ms on 30% of it: like most jobs,
// it uses small shares better.
var verticalTrain = fmt.Sprintf("{name: train, kind: training, command: [%q, \"20\", \"330\"], progress: \"^step ([0-9]+)\", gpu_mem: 64MiB}\n", built("victim", "train"))

// vertical compares Dilu's vertical scaling with instances that keep their requests.
type vertical struct {
	*environment
	exclusive map[string]float64 // by function: requests or iterations per second on the whole GPU
}

// sharing is the result of a run.
type sharing struct {
	p50, p95, most time.Duration // latency of requests to infer
	iterations     float64       // of train, per second
	used           float64       // part of the GPU that infer used, by its time on the whole GPU
}

// TestVertical shares a simulated GPU between a function with a latency objective and a training job, under the token
// daemon's policy introspective, with a plan of Dilu's. It measures the profile, and repeats runs of 30 s
// GFAAS_VERTICAL times (make vertical). The job must be faster with the limits of the plan than with its requests
// alone, the median of the 95th percentiles within the objective, and the median of the job's throughput at least 0.8
// of its exclusive throughput times the part of the GPU that the function did not use.
func TestVertical(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("GFAAS_VERTICAL"))
	if err != nil {
		t.Skip("GFAAS_VERTICAL is not a number: make vertical sets it")
	}
	v := &vertical{environment: newEnvironment(t)}
	v.env = append(v.env, gpuFunctions...)
	v.env = append(v.env, "PATH="+built("bin")+":"+os.Getenv("PATH"))
	v.write("infer.yaml", verticalInfer)
	v.write("train.yaml", verticalTrain)
	v.write("functions.yaml", verticalInfer+"---\n"+verticalTrain)
	v.write("demand.csv", "function,rps\ninfer,5\ntrain,25\n")
	v.output("apply", "-f", "functions.yaml")
	v.profile()
	v.exclusive = map[string]float64{}
	for _, row := range v.rows("profile.csv") {
		rate, err := strconv.ParseFloat(row[5], 64)
		if err != nil {
			t.Fatal(err)
		}
		v.exclusive[row[0]] = max(v.exclusive[row[0]], rate)
	}
	v.run("gfaas-place", "plan", "--algorithm", "dilu", "--arrivals", "steady", "--profile", "profile.csv", "--demand", "demand.csv", "--functions", "functions.yaml", "-o", "json", "-q", "--out-file", "limits.json")
	v.withoutLimits("limits.json", "requests.json")

	var with, without []sharing
	for round := range rounds {
		a, b := v.share("limits.json", uint64(round)), v.share("requests.json", uint64(round))
		t.Logf("with limits: p50 %v, p95 %v, longest %v, %.1f iterations/s; requests only: p50 %v, p95 %v, longest %v, %.1f iterations/s", a.p50, a.p95, a.most, a.iterations, b.p50, b.p95, b.most, b.iterations)
		with, without = append(with, a), append(without, b)
	}
	iterations := func(s sharing) float64 { return s.iterations }
	if got, want := median(with, iterations), median(without, iterations); got < 1.2*want {
		t.Errorf("iterations per second with limits: got %.1f, want at least 1.2 times the %.1f without", got, want)
	}
	const objective = 150 * time.Millisecond
	if got := time.Duration(median(with, func(s sharing) float64 { return float64(s.p95) })); got > objective {
		t.Errorf("median of the 95th percentiles: got %v, want at most %v", got, objective)
	}
	got, want := median(with, iterations), 0.8*v.exclusive["train"]*(1-median(with, func(s sharing) float64 { return s.used }))
	t.Logf("training: %.1f iterations/s of %.1f alone; infer used %.3f of the GPU", got, v.exclusive["train"], median(with, func(s sharing) float64 { return s.used }))
	if got < want {
		t.Errorf("iterations per second: got %.1f, want at least %.1f", got, want)
	}
}

// median returns the median of a figure of runs.
func median(runs []sharing, figure func(sharing) float64) float64 {
	var all []float64
	for _, s := range runs {
		all = append(all, figure(s))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// program returns a command of another program of gfaas.
func (v *vertical) program(name string, args ...string) *exec.Cmd {
	cmd := v.command()
	cmd.Path, cmd.Args = built("bin", name), append([]string{name}, args...)
	return cmd
}

// run runs a program that must succeed.
func (v *vertical) run(name string, args ...string) {
	v.t.Helper()
	if text, err := v.program(name, args...).CombinedOutput(); err != nil {
		v.t.Fatalf("%s %v: %v\n%s", name, args, err, text)
	}
}

// profile measures profile.csv. The requests come one after another, so the latency is that of a request alone.
func (v *vertical) profile() {
	options := []string{"run", "-q", "--gpu", "sim", "--quota", "1", "--duration", "3s"}
	v.run("gfaas-profile", append(options, "infer.yaml", "--sm", "25,50,100", "--out-file", "infer.csv", "--load", "closed:1", "--goodput=false", "--park=false")...)
	v.run("gfaas-profile", append(options, "train.yaml", "--sm", "30,50,100", "--out-file", "train.csv")...)
	text := strings.Join(profileColumns, ",") + "\n"
	for _, name := range []string{"infer.csv", "train.csv"} {
		for _, row := range v.rows(name) {
			text += strings.Join(row, ",") + "\n"
		}
	}
	v.t.Logf("profile:\n%s", text)
	v.write("profile.csv", text)
}

// profileColumns are those that the planner needs.
var profileColumns = []string{"function", "gpu", "sm_pct", "quota", "batch", "throughput_rps", "p95_ms"}

// rows returns the profileColumns of a profile.
func (v *vertical) rows(name string) (rows [][]string) {
	text, err := os.ReadFile(filepath.Join(v.dir, name))
	if err != nil {
		v.t.Fatal(err)
	}
	all, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	if err != nil {
		v.t.Fatal(err)
	}
	for _, row := range all[1:] {
		var chosen []string
		for _, column := range profileColumns {
			chosen = append(chosen, row[slices.Index(all[0], column)])
		}
		rows = append(rows, chosen)
	}
	return rows
}

// withoutLimits copies a plan and removes the limits of SM shares.
func (v *vertical) withoutLimits(from, to string) {
	text, err := os.ReadFile(filepath.Join(v.dir, from))
	if err != nil {
		v.t.Fatal(err)
	}
	var plan map[string]any
	if err := json.Unmarshal(text, &plan); err != nil {
		v.t.Fatal(err)
	}
	limits := 0
	for _, gpu := range plan["gpus"].([]any) {
		for _, instance := range gpu.(map[string]any)["instances"].([]any) {
			if _, limited := instance.(map[string]any)["sm_limit_pct"]; limited {
				limits++
			}
			delete(instance.(map[string]any), "sm_limit_pct")
		}
	}
	if limits != 2 || len(plan["gpus"].([]any)) != 1 {
		v.t.Fatalf("plan: got %d limits on %d GPUs, want 2 on 1:\n%s", limits, len(plan["gpus"].([]any)), text)
	}
	if text, err = json.Marshal(plan); err != nil {
		v.t.Fatal(err)
	}
	v.write(to, string(text))
}

// share starts the instances of a plan and a token daemon, and sends five requests a second to infer.
func (v *vertical) share(plan string, seed uint64) (s sharing) {
	v.t.Helper()
	// The daemon that gfaas-profile has started ends a few seconds after its last client.
	eventually(v.t, "the earlier gfaas-tokend ends", func() bool { return v.program("gfaas-tokend", "status").Run() != nil })
	daemon := v.program("gfaas-tokend", "--policy", "introspective")
	if err := daemon.Start(); err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = daemon.Process.Signal(syscall.SIGTERM); _ = daemon.Wait() }()
	eventually(v.t, "gfaas-tokend answers", func() bool { return v.program("gfaas-tokend", "status").Run() == nil })
	v.output("up", "-q", "--gpu", "sim", plan)
	defer func() { v.output("down") }()
	var instances []struct{ Function, Address string }
	if err := json.Unmarshal([]byte(v.output("ps", "-o", "json")), &instances); err != nil {
		v.t.Fatal(err)
	}
	var address string
	for _, i := range instances {
		if i.Function == "infer" {
			address = i.Address
		}
	}
	eventually(v.t, "the job runs", func() bool { return v.steps() > 0 })

	var mu sync.Mutex
	var latencies []time.Duration
	var running sync.WaitGroup
	random := rand.New(rand.NewPCG(seed, 1))
	from, begun := v.steps(), time.Now()
	for at := time.Duration(0); at < 30*time.Second; at += time.Duration(random.ExpFloat64() * float64(time.Second/5)) {
		time.Sleep(time.Until(begun.Add(at)))
		running.Go(func() {
			sent := time.Now()
			answer, err := http.Post("http://"+address+"/", "application/json", strings.NewReader(`{"n": 4096}`))
			if err != nil {
				v.t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				v.t.Errorf("status of a request: got %d, want 200", answer.StatusCode)
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, time.Since(sent))
		})
	}
	running.Wait()
	took := time.Since(begun)
	s.iterations = float64(v.steps()-from) / took.Seconds()
	s.used = float64(len(latencies)) / took.Seconds() / v.exclusive["infer"]
	if len(latencies) > 0 {
		slices.Sort(latencies)
		s.p50, s.p95, s.most = latencies[len(latencies)/2].Round(time.Millisecond), latencies[len(latencies)*95/100].Round(time.Millisecond), latencies[len(latencies)-1].Round(time.Millisecond)
	}
	return s
}

// steps returns the number of iterations that the job has completed.
func (v *vertical) steps() (n int) {
	lines := strings.Fields(v.output("logs", "train", "--tail", "1"))
	if len(lines) == 0 {
		return 0
	}
	n, _ = strconv.Atoi(lines[len(lines)-1])
	return n
}
