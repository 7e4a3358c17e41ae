package hooktest

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
)

// evenness is the output of check/steady.
type evenness struct {
	Kernels float64
	Seconds float64
	Stall   float64 `json:"stall_ms"`
	P50     float64 `json:"p50_ms"`
	P95     float64 `json:"p95_ms"`
}

// load describes the work of check/steady.
type load struct {
	seconds  int
	kernelUS int
	everyMS  int // interval of the kernels; 0: a kernel is always in flight
}

// saturating is the load of a client that always has work.
var saturating = load{seconds: 5, kernelUS: 100}

// steady starts check/steady with a load.
func (h *host) steady(env []string, l load) *program {
	args := []string{strconv.Itoa(l.seconds), strconv.Itoa(l.kernelUS)}
	if l.everyMS > 0 {
		args = append(args, strconv.Itoa(l.everyMS))
	}
	return h.run(env, "check/steady", args...)
}

func (h *host) evenness(p *program) (e evenness) {
	h.t.Helper()
	if err := p.wait(); err != nil {
		h.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(p.out.String()), &e); err != nil {
		h.t.Fatalf("parse the program's report %s: %v", p.out.String(), err)
	}
	return e
}

// scene describes saturating clients with the given quotas.
type scene struct {
	quotas []float64
	seldom float64 // quota of another client, which requests 2 ms eight times a second; 0: none
	busy   bool    // the host has other work
}

var scenes = map[string]scene{
	"30-70":    {quotas: []float64{0.3, 0.7}},
	"20-30-50": {quotas: []float64{0.2, 0.3, 0.5}},
	"seldom":   {quotas: []float64{0.8}, seldom: 0.2},
	"busy":     {quotas: []float64{0.3, 0.7}, busy: true},
}

// run runs a scene and returns its figures by unit, as go test prints them.
func (s scene) run(b *testing.B) map[string]float64 {
	h := newHost(b)
	h.priority = !s.busy
	h.start()
	defer h.kill()
	sleeper := h.startSleeper()
	if s.busy {
		defer h.occupied()()
	}
	withoutLibrary := append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "bare"))
	bare := h.evenness(h.steady(withoutLibrary, load{seconds: 2, kernelUS: 100}))
	var programs []*program
	for i, q := range s.quotas {
		programs = append(programs, h.steady(h.admit(withQuota(string(rune('a'+i)), q)), saturating))
	}
	got := map[string]float64{}
	if s.seldom > 0 {
		e := h.evenness(h.steady(h.admit(withQuota("seldom", s.seldom)), load{seconds: 5, kernelUS: 2000, everyMS: 125}))
		got["ms-p50"], got["ms-p95"] = e.P50, e.P95
	}
	var rates []float64
	sum, due := 0.0, 0.0
	for i, p := range programs {
		e := h.evenness(p)
		rates = append(rates, e.Kernels/e.Seconds/(bare.Kernels/bare.Seconds))
		sum, due = sum+rates[i], due+s.quotas[i]
		got["ms-stall-any"] = max(got["ms-stall-any"], e.Stall)
		got["ms-stall-largest"] = e.Stall // the last has the largest quota
	}
	got["ms-host"] = sleeper.latest()
	got["%bare"] = 100 * sum / due
	for i, rate := range rates {
		got["points-off"] = max(got["points-off"], 100*math.Abs(rate/sum*due-s.quotas[i]))
	}
	return got
}

// occupied keeps every processor busy twice over, until the returned function is
// called.
func (h *host) occupied() (end func()) {
	var hogs []*exec.Cmd
	for range 2 * runtime.NumCPU() {
		hog := exec.Command("sh", "-c", "while :; do :; done")
		if err := hog.Start(); err != nil {
			h.t.Fatal(err)
		}
		hogs = append(hogs, hog)
	}
	return func() {
		for _, hog := range hogs {
			_ = hog.Process.Kill()
			_ = hog.Wait()
		}
	}
}

// BenchmarkScenes shows how smoothly a GPU is shared among saturating clients: the
// longest stall of the largest client and of any client; their total throughput
// relative to one client without the library, and the largest deviation of a share; and
// the latency of a request of 2 ms next to a saturating client. ms-host shows how much
// of a stall may be due to the host: the latest wake-up of threads that only slept
// during the same seconds. Each figure is the median over the runs (-benchtime 7x for
// seven).
func BenchmarkScenes(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		b.Run(name, func(b *testing.B) {
			all := map[string][]float64{}
			for range b.N {
				for unit, value := range scenes[name].run(b) {
					all[unit] = append(all[unit], value)
				}
			}
			b.ReportMetric(0, "ns/op")
			for unit, values := range all {
				slices.Sort(values)
				b.ReportMetric(values[len(values)/2], unit)
			}
		})
	}
}
