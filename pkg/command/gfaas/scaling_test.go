package gfaas

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/record"
)

// phase is a part of a trace with a constant rate.
type phase struct {
	seconds int
	rps     float64
}

// scaling replays a trace through a gateway with a scaler and compares the instances with those of gfaas-sim scale.
type scaling struct {
	*environment
	t                 *testing.T
	scaler, placement string
	set               []string // parameters of the scaler
}

// TestScaling replays a trace with a varying rate through gateways with the scalers heuristic and lazy, and gives
// gfaas-sim scale the loads that the gateway has measured, and the same profile. All decisions must be the same. The test
// replays seven seconds, because the scalers decide once a second. GFAAS_SCALING=N (make scaling) replays two minutes N
// times, with functions that compute on the simulated GPU and a measured profile, and accepts a difference of 15% of the
// medians of the GPU seconds.
func TestScaling(t *testing.T) {
	t.Parallel()
	runs, placements := 1, []string{"policy"}
	phases := []phase{{2, 10}, {2, 40}, {3, 10}}
	lazy := []string{"window=3", "out=2", "in=1"}
	measured := "" // profile
	measure := os.Getenv("GFAAS_SCALING") != ""
	if measure {
		if _, err := fmt.Sscan(os.Getenv("GFAAS_SCALING"), &runs); err != nil {
			t.Fatalf("GFAAS_SCALING: %v", err)
		}
		placements = append(placements, "maxrect")
		phases = []phase{{20, 8}, {30, 30}, {35, 12}, {10, 45}, {25, 12}}
		lazy = nil
		measured = measuredProfile(t)
	}
	for _, placement := range placements {
		for scaler, set := range map[string][]string{"heuristic": nil, "lazy": lazy} {
			t.Run(scaler+"/"+placement, func(t *testing.T) {
				t.Parallel()
				s := &scaling{newEnvironment(t), t, scaler, placement, set}
				s.write("profile.csv", measured)
				if measured == "" {
					s.write("f.yaml", fmt.Sprintf("{name: f, command: [%s], scale: {max: 16, idle: 1h}, env: {WARM_MS: \"10\"}}\n", s.getenv("FUNCTION")))
					// 12% x 0.4 is the most efficient row, and the unit of lazy; 5% x 0.5 suffices for a small remainder.
					s.write("profile.csv", "function,sm_pct,quota,throughput_rps,p95_ms,cold_ms\nf,12,0.4,12,20,100\nf,12,0.8,20,20,100\nf,5,0.5,4,20,100\n")
				} else {
					s.env = append(s.env, gpuFunctions...)
					s.write("f.yaml", saxpyFunction)
				}
				s.write("trace.csv", phased(phases, measure))
				s.output("apply", "-f", "f.yaml")
				var live, simulated []float64
				for range runs {
					got, want := s.replay()
					if !measure && !maps.Equal(got.changes, want.changes) {
						t.Errorf("number of instances that the scaler wants, by second: got %v, want the simulated %v", got.changes, want.changes)
					}
					live, simulated = append(live, got.gpuSeconds), append(simulated, want.gpuSeconds)
				}
				slices.Sort(live)
				slices.Sort(simulated)
				got, want := live[runs/2], simulated[runs/2]
				t.Logf("medians of the GPU seconds: measured %.2f, simulated %.2f", got, want)
				if measure && (got < 0.85*want || got > 1.15*want) {
					t.Errorf("GPU seconds: got %.2f, want the simulated %.2f ± 15%%", got, want)
				}
			})
		}
	}
}

// deployment describes the instances of a run.
type deployment struct {
	gpuSeconds, instanceSeconds float64     // times from start to end, the first weighted with the shares of the GPU
	starts                      int         // after the first second
	changes                     map[int]int // number of instances that the scaler wants, by the second in which it changes
}

// replay replays trace.csv and returns the measured deployment, and that of gfaas-sim scale for the same loads and
// profile.
func (s *scaling) replay() (live, simulated deployment) {
	t := s.t
	options := []string{"--policy", "gfaas", "--concurrency", "16", "--pool", "16", "--profile", "profile.csv", "--scaler", s.scaler, "--placement", s.placement}
	sim := []string{"scale", "--rps", "series.csv", "--profile", "profile.csv", "--function", "f", "--scaler", s.scaler, "--first", "call", "-o", "json", "--trace-out", "decisions.jsonl", "--set", "max=16", "--set", "idle=3600"}
	for _, set := range s.set {
		options, sim = append(options, "--scaler-set", set), append(sim, "--set", set)
	}
	g := s.serve(append(options, "--record", "record.jsonl")...)
	text, err := s.command("replay", "trace.csv", "--quiet", "-o", "json").Output()
	if err != nil {
		t.Fatalf("replay: %v\n%s", err, text)
	}
	calls := decode(t, text)
	if code := g.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit status of the gateway: got %d, want 0", code)
	}
	live, loads := deploymentIn(t, filepath.Join(s.dir, "record.jsonl"))
	var series strings.Builder
	series.WriteString("second,rps\n")
	for second, rps := range loads {
		fmt.Fprintf(&series, "%d,%v\n", second, rps)
	}
	s.write("series.csv", series.String())
	if text, err = s.sim(sim...); err != nil {
		t.Fatalf("gfaas-sim scale: %v\n%s", err, text)
	}
	var result struct {
		ColdStarts      int     `json:"cold_starts"`
		InstanceSeconds float64 `json:"instance_seconds"`
		GPUSeconds      float64 `json:"gpu_seconds"`
		Violations      float64 `json:"slo_violation_ratio"`
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	simulated = deployment{result.GPUSeconds, result.InstanceSeconds, result.ColdStarts, map[int]int{}}
	for line := range readLines(t, filepath.Join(s.dir, "decisions.jsonl")) {
		var d struct{ Second, Instances int }
		if err := json.Unmarshal(line, &d); err != nil {
			t.Fatal(err)
		}
		simulated.changes[d.Second] = d.Instances
	}
	delete(live.changes, len(loads)) // in the last second, the simulator does not decide
	t.Logf("measured %.2f GPU s, %.0f instance s, %d starts, mean latency %.0f ms, sent late by %.0f ms at most; simulated %.2f GPU s, %.0f instance s, %d starts, %.1f%% of the calls beyond the capacity",
		live.gpuSeconds, live.instanceSeconds, live.starts, calls.Latency.Mean, calls.LateMS, simulated.gpuSeconds, simulated.instanceSeconds, simulated.starts, 100*result.Violations)
	t.Logf("instances that the scaler wants, by second: measured %v, simulated %v", live.changes, simulated.changes)
	return live, simulated
}

// deploymentIn returns the deployment in a record of a gateway with one function, and the load of each second. It
// omits the time until the end of the second in which the first call came: that call has started an instance.
func deploymentIn(t *testing.T, path string) (d deployment, loads []float64) {
	type deployed struct {
		from  time.Duration
		share float64 // of the GPU
	}
	d.changes = map[int]int{}
	instances := map[residency.ID]*deployed{}
	var share float64 // of instances without their own
	var begin, end time.Duration
	var wanted int
	var ended []func() // each adds an instance to the sums, when end is known
	add := func(in *deployed, until time.Duration) {
		ended = append(ended, func() {
			if lived := min(until, end) - max(in.from, begin); lived > 0 {
				d.instanceSeconds += lived.Seconds()
				d.gpuSeconds += lived.Seconds() * in.share
			}
			if in.from > begin && in.from < end {
				d.starts++
			}
		})
	}
	for text := range readLines(t, path) {
		var line struct {
			record.Event
			Action string
			Start  string
		}
		if err := json.Unmarshal(text, &line); err != nil {
			t.Fatal(err)
		}
		now, id := time.Duration(line.TimeMS), line.Container
		in := instances[id]
		switch {
		case (line.Action == "start" || line.Action == "run" && line.Start == "cold") && in == nil:
			instances[id] = &deployed{now, share}
		case line.Event.Event == "function":
			share = line.Spec.Slice
		case line.Event.Event == "sliced" && in != nil:
			in.share = line.Slice
		case line.Event.Event == "lost" && in != nil:
			add(in, now)
			delete(instances, id)
		case line.Event.Event == record.Load:
			end = now
			switch {
			case begin > 0:
				loads = append(loads, line.RPS)
				if *line.Instances != wanted {
					d.changes[len(loads)] = *line.Instances
				}
			case line.RPS > 0:
				begin = now
			}
			wanted = *line.Instances
		}
	}
	for _, in := range instances {
		add(in, end)
	}
	for _, sum := range ended {
		sum()
	}
	return d, loads
}

// readLines returns the lines of a file.
func readLines(t *testing.T, path string) func(func([]byte) bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func([]byte) bool) {
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() && yield(lines.Bytes()) {
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// phased returns a trace with calls of f, with Poisson arrivals or at equal distances.
func phased(phases []phase, poisson bool) string {
	random := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	text.WriteString("function,invoke_time_ms\n")
	var at, until time.Duration
	for _, p := range phases {
		until += time.Duration(p.seconds) * time.Second
		for at < until {
			fmt.Fprintf(&text, "f,%.3f\n", float64(at)/float64(time.Millisecond))
			gap := 1 / p.rps
			if poisson {
				gap *= random.ExpFloat64()
			}
			at += time.Duration(gap * float64(time.Second))
		}
	}
	return text.String()
}

// gpuFunctions are the environment variables for functions that compute on the simulated GPU, with the libraries that
// make has built.
var gpuFunctions = []string{"GFAAS_LIB_DIR=" + built("lib"), "GFAAS_SIM_NOTED=1"}

// saxpy is a program that serves a function with the simulated GPU.
var saxpy = filepath.Join(built("examples"), "saxpy", "saxpy")

// saxpyFunction is the definition of a function that computes for 32 ms on 12% of the simulated GPU.
var saxpyFunction = fmt.Sprintf("{name: f, command: [%q], contract: http, gpu_mem: 64MiB, scale: {max: 16, idle: 1h}, env: {SAXPY_BLOCKS: \"320\", SAXPY_LAUNCHES: \"2\"}}\n",
	saxpy)

// measuredProfile measures the profile of saxpyFunction.
func measuredProfile(t *testing.T) string {
	p := newEnvironment(t)
	p.env = append(p.env, gpuFunctions...)
	p.write("f.yaml", saxpyFunction)
	p.output("apply", "-f", "f.yaml")
	cmd := exec.Command(filepath.Join(built("bin"), "gfaas-profile"), "run", "f.yaml", "-q", "--gpu", "sim", "--goodput=false", "--park=false", "--load", "closed:4",
		"--sm", "12,24", "--quota", "0.4,0.8", "--duration", "2s", "--warmup", "500ms", "--out-file", "profile.csv")
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), append(p.env, "PATH="+built("bin")+":"+os.Getenv("PATH"))...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gfaas-profile: %v\n%s", err, text)
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "profile.csv"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("profile:\n%s", text)
	return string(text)
}
