package hooktest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	point       = 0.01 // of a GPU's time: tolerance of a share
	window      = 100 * time.Millisecond
	prepareTime = time.Second     // for the start of all contenders
	countedTime = 5 * time.Second // the time that testdata/victim/saturate counts: all but its first second
)

// contender is a program in a slice that launches endlessly.
type contender struct {
	id    string
	slice gpu.Slice
	turns []gpu.Turn
}

// withQuota returns a contender with all SMs and a quota, which is both the request and the limit.
func withQuota(id string, quota float64) contender {
	return withSlice(id, gpu.Slice{SMPct: 100, QuotaRequest: quota, QuotaLimit: quota})
}

// withSlice returns a contender with a slice.
func withSlice(id string, s gpu.Slice) contender { return contender{id: id, slice: s} }

// admit registers a contender and returns the environment of its processes.
func (h *host) admit(c contender) []string {
	h.t.Helper()
	secret := preload.NewSecret()
	_, err := h.client.Register(context.Background(), wire.Registration{
		Instance: c.id, Function: c.id, Secret: secret, Allocation: wire.Allocation{
			GPU: "sim", SMPct: c.slice.SMPct, QuotaRequest: c.slice.QuotaRequest, QuotaLimit: c.slice.QuotaLimit, Turns: c.turns,
		},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.environ(c.id, secret, c.slice)
}

// contend runs the contenders side by side and returns the fraction of five seconds
// that each computed. It follows from the number of launches, because the time of their
// kernels on the simulated GPU of 80 SMs is known.
func (h *host) contend(list ...contender) (shares []float64) {
	h.t.Helper()
	return h.awaitShares(list, h.saturate(list, time.Now().Add(prepareTime)))
}

// saturate starts the contenders. For 6 s from begin, each launches kernels of 80 blocks, one for each
// SM of the GPU, of 100 us, and does not synchronise before the end.
func (h *host) saturate(list []contender, begin time.Time) (programs []*program) {
	h.t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		h.t.Fatal(err)
	}
	at := time.Duration(now.Nano()) + time.Until(begin)
	for _, c := range list {
		env := append(h.admit(c), fmt.Sprintf("SATURATE_BEGIN=%.6f", at.Seconds()))
		programs = append(programs, h.run(env, "victim/saturate", "6", "100", "80", "0"))
	}
	return programs
}

// awaitShares waits for the contenders' programs and returns the result of contend.
func (h *host) awaitShares(list []contender, programs []*program) (shares []float64) {
	h.t.Helper()
	for i, p := range programs {
		if err := p.wait(); err != nil {
			h.t.Fatal(err)
		}
		var report struct {
			Launches float64 `json:"settled_launches"`
			Seconds  float64 `json:"settled_s"`
		}
		if err := json.Unmarshal([]byte(p.out.String()), &report); err != nil || report.Seconds != countedTime.Seconds() {
			h.t.Fatalf("parse the program's report %s: %v; want one over %v", p.out.String(), err, countedTime)
		}
		waves := math.Ceil(80 / math.Ceil(80*list[i].slice.SMPct/100))
		shares = append(shares, report.Launches*waves*100e-6/report.Seconds)
	}
	return shares
}

// contest runs contend on the host h, next to a witness. It also returns an upper bound
// of the time that the host machine may have taken.
func contest(t *testing.T, h *host, list ...contender) (shares []float64, stalled float64) {
	t.Helper()
	cycle := gpu.Round // in which each contender has the GPU once
	if len(list[0].turns) > 0 {
		cycle = window
	}
	begin := time.Now().Add(prepareTime)
	programs := h.saturate(list, begin)
	time.Sleep(time.Until(begin))
	w := h.startWitness(len(list), cycle, countedTime)
	return h.awaitShares(list, programs), w.stalled()
}

// startPriorityHost starts a host whose daemon and programs have priority over all other
// processes.
func startPriorityHost(t *testing.T, flags ...string) *host {
	t.Helper()
	h := newHost(t)
	h.priority, h.flags = true, flags
	h.start()
	return h
}

// outcome compares shares with the contenders' quotas.
type outcome struct {
	computed float64 // computed work relative to the sum of the requests, weighted by SM share
	short    float64 // largest shortfall of a contender below its request
	off      float64 // largest deviation of a contender from its part of the computed work
}

func compare(list []contender, shares []float64) (o outcome) {
	got, due := 0.0, 0.0
	for i, c := range list {
		got += shares[i] * c.slice.SMPct
		due += c.slice.QuotaRequest * c.slice.SMPct
	}
	o.computed = got / due
	for i, c := range list {
		o.short = max(o.short, c.slice.QuotaRequest-shares[i])
		o.off = max(o.off, math.Abs(shares[i]/o.computed-c.slice.QuotaRequest))
	}
	return o
}

// halfOf24 is a slice of 24% of the SMs for half of the time.
var halfOf24 = gpu.Slice{SMPct: 24, QuotaRequest: 0.5, QuotaLimit: 0.5}

var contests = map[string][]contender{
	"10-90":    {withQuota("tenth", 0.1), withQuota("rest", 0.9)},
	"20-30-50": {withQuota("fifth", 0.2), withQuota("three", 0.3), withQuota("half", 0.5)},
	"3-of-24":  {withSlice("a", halfOf24), withSlice("b", halfOf24), withSlice("c", halfOf24)},
}

// TestShares checks that saturating programs compute the fractions given by their
// quotas to within one point, with a total loss of at most 3%, except for the time that
// the host takes.
func TestShares(t *testing.T) {
	for name, list := range contests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shares, stalled := contest(t, startPriorityHost(t), list...)
			o := compare(list, shares)
			if t.Logf("shares %.4f: %+v", shares, o); o.off > point+stalled || o.computed < 0.97-stalled {
				t.Errorf("shares %.4f: got them off by %.4f, with %.4f computed in total; want at most %.4f and at least %.4f", shares, o.off, o.computed, point+stalled, 0.97-stalled)
			}
		})
	}
}

// TestQuotaChanges checks that a running program's quota changes within a window, and
// that no other share moves by more than a point, except for the time that the host
// takes.
func TestQuotaChanges(t *testing.T) {
	t.Parallel()
	list := []contender{withQuota("changes", 0.1), withQuota("three", 0.3), withQuota("four", 0.4)}
	h := startPriorityHost(t)
	started := time.Now().Add(prepareTime)
	programs := h.saturate(list, started)
	time.Sleep(time.Until(started))
	w := h.startWitness(len(list), gpu.Round, countedTime)
	h.eventually("all programs have launched", func() bool {
		return !slices.ContainsFunc(list, func(c contender) bool { row, _ := h.row(c.id); return row.Launches == 0 })
	})
	time.Sleep(2 * time.Second) // they have settled, and the change falls into the counted time
	const quota, seen = 0.3, 2 * time.Second
	change := func(quota float64) {
		t.Helper()
		if err := h.client.Change(t.Context(), "changes", wire.Change{QuotaRequest: &quota, QuotaLimit: &quota}); err != nil {
			t.Fatal(err)
		}
	}
	change(quota)
	// Each count is of some moment between the query and its answer.
	queried, before := time.Now(), launches(h, "changes")
	begin := time.Now()
	time.Sleep(seen)
	end := time.Now()
	ran := launches(h, "changes") - before
	shortest, longest := end.Sub(begin), time.Since(queried)
	change(0.1)
	shares := h.awaitShares(list, programs)
	stalled := w.stalled()
	most, least := ran*100e-6/shortest.Seconds(), ran*100e-6/longest.Seconds()
	due := quota - (quota-0.1)*window.Seconds()/shortest.Seconds() // if the change took effect a window late
	t.Logf("with a quota of %v it had %.4f to %.4f; all in all %.4f", quota, least, most, shares)
	if most < due-point-stalled || least > quota+point+stalled {
		t.Errorf("share after the change: got %.4f to %.4f, want %.4f to %.4f ± %.4f", least, most, due, quota, point+stalled)
	}
	for i, c := range list[1:] {
		if got := shares[i+1]; math.Abs(got-c.slice.QuotaRequest) > point+stalled {
			t.Errorf("share of %s: got %.4f, want %v ± %.4f", c.id, got, c.slice.QuotaRequest, point+stalled)
		}
	}
}

// launches returns an instance's launches until now.
func launches(h *host, id string) float64 {
	h.t.Helper()
	row, ok := h.row(id)
	if !ok {
		h.t.Fatalf("clients of the daemon: got no %s, want it", id)
	}
	return float64(row.Launches)
}

// TestIdleCostsNothing checks that a busy client gets its limit although another client
// holds half of the GPU as its quota, whether that one never launched or launched and
// became idle.
func TestIdleCostsNothing(t *testing.T) {
	for _, launched := range []bool{false, true} {
		for _, limit := range []float64{0.5, 1} {
			t.Run(fmt.Sprintf("launched %v, limit %v", launched, limit), func(t *testing.T) {
				t.Parallel()
				h := startPriorityHost(t)
				env := h.admit(withQuota("idle", 0.5))
				if launched {
					idle := h.run(env, "check/route", "link", "cuLaunchKernel", "3")
					h.eventually("the idle client has launched", func() bool { return strings.Contains(idle.out.String(), "ok") })
				}
				shares, stalled := contest(t, h, withSlice("busy", gpu.Slice{SMPct: 100, QuotaRequest: 0.5, QuotaLimit: limit}))
				if t.Logf("share: %.4f", shares[0]); math.Abs(shares[0]-limit) > point+stalled {
					t.Errorf("share of the busy client: got %.4f, want %v ± %.4f", shares[0], limit, point+stalled)
				}
			})
		}
	}
}

// planned returns the instances of a plan's first GPU, as gfaas up registers them.
func planned(t testing.TB, path string) (list []contender) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p, err := plan.Read(file, path)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := verify.Plan(p, verify.Inputs{}); len(wrong) > 0 {
		t.Fatalf("plan %s: got the violations %v, want none", path, wrong)
	}
	turns := p.GPUs[0].Turns()
	for _, in := range p.GPUs[0].Instances {
		c := withSlice(in.ID, gpu.Slice{SMPct: in.SMPct, QuotaRequest: in.QuotaRequest, QuotaLimit: in.QuotaLimit})
		c.turns = turns[in.ID]
		list = append(list, c)
	}
	return list
}

// unplanned returns the same contenders without turns.
func unplanned(list []contender) []contender {
	out := slices.Clone(list)
	for i := range out {
		out[i].turns = nil
	}
	return out
}

// TestTimetableGivesPlannedShares fills a GPU with the eight instances that FaST-GShare packs on it
// (section 5.4). They cover 98% of its area, and all of them saturate. With the plan's
// timetable, each gets its request as a fraction of the computed work, to within one
// point and the time that the host takes.
func TestTimetableGivesPlannedShares(t *testing.T) {
	list := planned(t, "testdata/packed.json")
	shares, stalled := contest(t, startPriorityHost(t), list...)
	o := compare(list, shares)
	if t.Logf("shares %.4f: %+v", shares, o); o.off > point+stalled {
		t.Errorf("shares %.4f: got them off by %.4f, want at most %.4f", shares, o.off, point+stalled)
	}
}

// BenchmarkShares shows the shares on a host without other work: the computed work as a
// fraction of all quotas, and the largest shortfall of a client below its request. The
// GPU that is filled by a plan is shown with and without the plan's turns.
func BenchmarkShares(b *testing.B) {
	list := planned(b, "testdata/packed.json")
	runs := map[string][]contender{"planned": list, "planned-greedy": unplanned(list)}
	maps.Copy(runs, contests)
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		b.Run(name, func(b *testing.B) {
			var sum outcome
			for range b.N {
				h := newHost(b)
				h.start()
				o := compare(runs[name], h.contend(runs[name]...))
				sum = outcome{sum.computed + o.computed, sum.short + o.short, sum.off + o.off}
				h.kill()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(100*sum.computed/float64(b.N), "%computed")
			b.ReportMetric(100*sum.short/float64(b.N), "points-short")
			b.ReportMetric(100*sum.off/float64(b.N), "points-off")
		})
	}
}

// BenchmarkCrowd runs 256 clients of one GPU, of which 32 saturate, each with a quota
// of 1/32. It shows the largest deviation of a client from its quota, in points.
func BenchmarkCrowd(b *testing.B) {
	const clients, busy = 256, 32
	for range b.N {
		h := newHost(b)
		h.start()
		for i := range clients - busy {
			id := fmt.Sprintf("idle-%d", i)
			env := h.admit(withQuota(id, 1.0/busy))
			at := func(key string) string { return valueOf(env, key) }
			c, err := tokentest.Dial(at("GFAAS_SOCKET"), id, at("GFAAS_SECRET"), 0)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { c.Close() })
		}
		var list []contender
		for i := range busy {
			list = append(list, withQuota(fmt.Sprintf("busy-%d", i), 1.0/busy))
		}
		shares := h.contend(list...)
		off, sum := 0.0, 0.0
		for _, share := range shares {
			off, sum = max(off, math.Abs(share-1.0/busy)), sum+share
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(100*off, "points-off")
		b.ReportMetric(100*sum, "%computed")
		h.kill()
	}
}

// valueOf returns the value of a variable in an environment.
func valueOf(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if name, value, _ := strings.Cut(kv, "="); name == key {
			return value
		}
	}
	return ""
}
