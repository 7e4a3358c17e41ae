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
	"testing"
)

// evenness is what check/steady says of a run.
type evenness struct {
	Kernels float64
	Seconds float64
	Stall   float64 `json:"stall_ms"`
	P50     float64 `json:"p50_ms"`
	P95     float64 `json:"p95_ms"`
}

// steady is a running check/steady: kernels of 100 us, or what else is said.
func (h *host) steady(env []string, args ...string) *program {
	if len(args) == 0 {
		args = []string{"5", "100"}
	}
	return h.run(env, "check/steady", args...)
}

func (h *host) evenness(p *program) (e evenness) {
	h.t.Helper()
	if err := p.wait(); err != nil {
		h.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(p.out.String()), &e); err != nil {
		h.t.Fatalf("%s: %v", p.out.String(), err)
	}
	return e
}

// scene is what clients with these quotas come to who want all they can get.
type scene struct {
	quotas []float64
	seldom float64 // quota of one more that asks for 2 ms eight times a second; 0: none
	busy   bool    // the host has other things to do
}

var scenes = map[string]scene{
	"30-70":    {quotas: []float64{0.3, 0.7}},
	"20-30-50": {quotas: []float64{0.2, 0.3, 0.5}},
	"seldom":   {quotas: []float64{0.8}, seldom: 0.2},
	"busy":     {quotas: []float64{0.3, 0.7}, busy: true},
}

// play runs a scene and tells what came of it, in the units that go test prints.
func (s scene) play(b *testing.B) map[string]float64 {
	h := newHost(b)
	h.first = !s.busy
	h.start()
	defer h.kill()
	sleeper := h.sleeps()
	if s.busy {
		defer h.occupied()()
	}
	bare := h.evenness(h.steady(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"),
		"GFAAS_SIM_DIR="+filepath.Join(h.runDir, "bare")), "2", "100"))
	var programs []*program
	for i, q := range s.quotas {
		programs = append(programs, h.steady(h.admit(want(string(rune('a'+i)), 100, q, q))))
	}
	got := map[string]float64{}
	if s.seldom > 0 {
		e := h.evenness(h.steady(h.admit(want("seldom", 100, s.seldom, s.seldom)), "5", "2000", "125"))
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

// occupied keeps the processors busy, twice over, until the answer is called.
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

// BenchmarkScenes shows how smoothly a GPU is shared: of clients that want all
// they can get the longest stall, of the largest and of any; what they have
// together of what one has without the library, and how far a share is off; and how
// long a request of 2 ms takes beside a client that wants all it can get. What of a
// stall may be the host's is told by ms-host: how late, at the worst, the same seconds
// woke threads that only slept. The median of as many runs as are asked for
// (-benchtime 7x).
func BenchmarkScenes(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		b.Run(name, func(b *testing.B) {
			all := map[string][]float64{}
			for range b.N {
				for what, value := range scenes[name].play(b) {
					all[what] = append(all[what], value)
				}
			}
			b.ReportMetric(0, "ns/op")
			for what, values := range all {
				slices.Sort(values)
				b.ReportMetric(values[len(values)/2], what)
			}
		})
	}
}
