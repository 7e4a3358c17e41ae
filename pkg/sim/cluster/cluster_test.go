package cluster

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/events"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
)

// gpus is the size of a cluster, with the memory of each GPU in GiB.
type gpus struct {
	nodes   int
	perNode int
	gib     float64
}

// play runs the events with a scheduler for that number of nodes and GPUs. Its clock advances by
// a microsecond per reading.
func play(all []events.Event, size gpus, placer func([]plan.Device) *online.Fleet) Result {
	var devices []plan.Device
	w := World{}
	for n := range size.nodes {
		for g := range size.perNode {
			devices = append(devices, plan.Device{Node: fmt.Sprint("n", n), Index: g, MemMiB: size.gib * 1024})
			w.Mem = append(w.Mem, gpu.FromMiB(size.gib*1024))
		}
	}
	w.Placer = placer(devices)
	ticks := time.Duration(0)
	w.Clock = func() time.Duration { ticks += time.Microsecond; return ticks }
	r, err := Run(w, all)
	if err != nil {
		panic(err) // there is no Progress that could fail
	}
	return r
}

func dilu(d []plan.Device) *online.Fleet { return online.Dilu(d, online.DiluDefaults()) }

// TestFigures has an example worked out by hand. Up to 10 s, one GPU holds 0.4 of its SMs and 10
// GiB. Up to 20 s, two GPUs hold 0.4 + 0.4 and 0.8, and 20 of 40 GiB each. Then the first one is
// empty.
func TestFigures(t *testing.T) {
	start := func(at float64, name string, sm, gib float64) events.Event {
		return events.Event{Time: at, Start: true, Instance: name, Function: name, GPUs: 1, SMRequest: sm, SMLimit: sm, MemMiB: gib * 1024}
	}
	r := play([]events.Event{
		start(0, "a", 0.4, 10), start(10, "b", 0.4, 10), start(10, "c", 0.8, 20), start(10, "big", 0.8, 50),
		{Time: 20, Instance: "a"}, {Time: 20, Instance: "b"}, {Time: 30, Instance: "big"}, {Time: 40, Instance: "c"},
	}, gpus{nodes: 1, perNode: 4, gib: 40}, dilu)
	want := Result{
		GPUs: 4, GPUsPeak: 2, GPUSeconds: 10 + 20 + 20, SMFragmentation: 1 - (4.0+16+16)/50, MemFragmentation: 1 - (100.0+400+400)/2000,
		AllocatedPeak: 0.4, Placed: 3, Rejected: 1, Decision: Statistics{1, 1},
	}
	for _, d := range []*float64{&r.GPUSeconds, &r.SMFragmentation, &r.MemFragmentation} {
		*d = math.Round(*d*1e9) / 1e9
	}
	if r != want {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
}

func TestNoEvents(t *testing.T) {
	if r := play(nil, gpus{nodes: 1, perNode: 1, gib: 40}, dilu); r != (Result{GPUs: 1}) {
		t.Errorf("run without events: got %+v, want only 1 GPU", r)
	}
}

// TestDilusCluster checks that the schedulers rank as in the paper (section 5.5), and that Dilu
// needs a fifth fewer GPUs than exclusive, at the peak and over time.
func TestDilusCluster(t *testing.T) {
	for seed := range uint64(3) {
		all := events.Mix(seed, 3200)
		d, i, x := play(all, gpus{nodes: 1000, perNode: 4, gib: 40}, dilu), play(all, gpus{nodes: 1000, perNode: 4, gib: 40}, online.INFless), play(all, gpus{nodes: 1000, perNode: 4, gib: 40}, online.Exclusive)
		if d.Rejected+i.Rejected+x.Rejected > 0 || d.Placed != 3200 {
			t.Errorf("seed %d: rejected: got %d by dilu, %d by infless, %d by exclusive; want 0, and 3200 placed by dilu, got %d", seed, d.Rejected, i.Rejected, x.Rejected, d.Placed)
		}
		if float64(d.GPUsPeak) > 0.8*float64(x.GPUsPeak) || d.GPUSeconds > 0.8*x.GPUSeconds {
			t.Errorf("seed %d: dilu: got %d GPUs at the peak and %.0f GPU seconds, want at most 80%% of exclusive's %d and %.0f s", seed, d.GPUsPeak, d.GPUSeconds, x.GPUsPeak, x.GPUSeconds)
		}
		if !(d.GPUsPeak < i.GPUsPeak && i.GPUsPeak < x.GPUsPeak && d.SMFragmentation < i.SMFragmentation && d.MemFragmentation < i.MemFragmentation) {
			t.Errorf("seed %d: want fewer GPUs at the peak for dilu than for infless, and for infless than for exclusive, and less fragmentation for dilu than for infless; got\ndilu %+v\ninfless %+v\nexclusive %+v", seed, d, i, x)
		}
	}
}

// BenchmarkDecision plays Dilu's mix of 3,200 instances on 1,000 nodes of 4 GPUs. It reports
// µs/decision; the paper's value is 350.
func BenchmarkDecision(b *testing.B) {
	for name, placer := range map[string]func([]plan.Device) *online.Fleet{
		"dilu": dilu, "exclusive": online.Exclusive, "infless": online.INFless, "fast": online.FaST,
	} {
		b.Run(name, func(b *testing.B) {
			all := events.Mix(1, 3200)
			for b.Loop() {
				play(all, gpus{nodes: 1000, perNode: 4, gib: 40}, placer)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/3200, "µs/decision")
		})
	}
}

// TestProgress checks the calls of Progress, whose error ends the run.
func TestProgress(t *testing.T) {
	var reported []int
	enough := errors.New("enough")
	w := World{Placer: dilu(nil), Clock: func() time.Duration { return 0 }, Progress: func(played int) error {
		if reported = append(reported, played); len(reported) == 3 {
			return enough
		}
		return nil
	}}
	if _, err := Run(w, make([]events.Event, 10*progressInterval)); !errors.Is(err, enough) || !slices.Equal(reported, []int{progressInterval, 2 * progressInterval, 3 * progressInterval}) {
		t.Errorf("calls of Progress: got %v, %v; want %v and its error", reported, err, []int{progressInterval, 2 * progressInterval, 3 * progressInterval})
	}
}
