package hooktest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// scaling is a host whose daemon scales.
func scaling(t *testing.T) *host {
	h := newHost(t)
	h.first = true
	h.flags = []string{"--policy", policy.Introspection}
	h.start()
	return h
}

// registerSLO is register for an instance with a latency objective.
func (h *host) registerSLO(id string, s gpu.Slice, ms float64) []string {
	h.t.Helper()
	secret := preload.NewSecret()
	_, err := h.client.Register(context.Background(), wire.Registration{
		Instance: id, Function: id, Secret: secret, SLOMS: ms,
		Seat: wire.Seat{GPU: "sim", SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.environ(id, secret, s)
}

func elastic(request, limit float64) gpu.Slice {
	return gpu.Slice{SMPct: 100, QuotaRequest: request, QuotaLimit: limit}
}

// share is the part of the GPU that a saturate program had, which launched
// kernels of that many microseconds. It is of what the program counted and of
// what the simulated driver makes a kernel cost, so nothing is estimated.
func share(t *testing.T, p *program, us float64) float64 {
	t.Helper()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	var said struct {
		Launches float64
		S        float64 `json:"elapsed_s"`
	}
	if err := json.Unmarshal([]byte(p.out.String()), &said); err != nil {
		t.Fatalf("%s: %v", p.out.String(), err)
	}
	return said.Launches * us / 1e6 / said.S
}

// alone is what a saturate program alone on the GPU has of it.
func alone(t *testing.T, limit float64, us, blocks string, kernelUS float64) float64 {
	h := scaling(t)
	return share(t, h.run(h.register("a", elastic(limit/2, limit)), "victim/saturate", "3", us, blocks, "0"), kernelUS)
}

// TestIntrospectiveAlone has a program alone get its limit of what it has when
// nothing limits it, however long its kernels are and however many blocks they
// have. A machine that is busy with other things takes from either: then it is
// looked at again. More than the limit it never has.
func TestIntrospectiveAlone(t *testing.T) {
	for _, tt := range []struct {
		us, blocks string
		kernelUS   float64
	}{{"1000", "7", 1000}, {"20", "800", 200}} {
		t.Run(fmt.Sprintf("kernels of %v us", tt.kernelUS), func(t *testing.T) {
			t.Parallel()
			for range 8 {
				free, limited := alone(t, 1, tt.us, tt.blocks, tt.kernelUS), alone(t, 0.8, tt.us, tt.blocks, tt.kernelUS)
				t.Logf("%s blocks: %.4f of the GPU without a limit, %.4f with one of 0.8", tt.blocks, free, limited)
				if limited > 0.82 {
					t.Errorf("it had %.4f of the GPU", limited)
				}
				if limited > 0.8*free-0.03 {
					return
				}
			}
			t.Errorf("it never has its limit")
		})
	}
}

// TestIntrospectiveTwo has two programs with kernels of very different size
// side by side: of all that is done each does its request, and of the rest a
// part in proportion. A busy host may keep one of them from launching in time,
// which leaves the other more: then they are looked at again. More than its
// limit neither ever has.
func TestIntrospectiveTwo(t *testing.T) {
	t.Parallel()
	for range attempts {
		h := scaling(t)
		a := h.run(h.register("a", elastic(0.3, 0.8)), "victim/saturate", "6", "100", "80", "0")
		b := h.run(h.register("b", elastic(0.5, 0.8)), "victim/saturate", "6", "20", "800", "0")
		h.eventually("both run, metered", func() bool {
			rowA, _ := h.row("a")
			rowB, _ := h.row("b")
			return rowA.State == "running" && rowB.State == "running" && rowA.BudgetBlocks > 0 && rowB.BudgetBlocks > 0
		})
		shareA, shareB := share(t, a, 100), share(t, b, 200)
		sum := shareA + shareB
		t.Logf("requests 0.3 and 0.5, limits 0.8: %.4f and %.4f, sum %.4f", shareA, shareB, sum)
		if shareA > 0.82 || shareB > 0.82 {
			t.Errorf("they had %.4f and %.4f", shareA, shareB)
		}
		if shareA >= 0.3*sum && shareB >= 0.5*sum {
			return
		}
		h.kill()
	}
	t.Errorf("in none of %d runs did each do its request", attempts)
}

// latencies runs a server in bursts beside a training and returns what its
// requests took, in ms, and the training's share of the GPU.
func latencies(t *testing.T, h *host, server gpu.Slice) (all [][]float64, training float64) {
	t.Helper()
	other := h.run(h.register("training", elastic(0.4, 0.9)), "victim/saturate", "60", "100", "80", "0")
	h.eventually("the training runs", func() bool { row, _ := h.row("training"); return row.Launches > 1000 })
	p := h.run(h.registerSLO("server", server, 50), "check/serve", "7", "12", "30", "300", "100", "100", "80")
	if err := p.wait(); err != nil {
		t.Fatal(err, p.errout.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(p.out.String()), "\n") {
		var burst []float64
		for _, field := range strings.Fields(line) {
			ms, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatal(err)
			}
			burst = append(burst, ms)
		}
		all = append(all, burst)
	}
	if err := other.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return all[1:], share(t, other, 100) // the first burst has it measured
}

func percentile(of [][]float64, p int) float64 {
	all := slices.Concat(of...)
	slices.Sort(all)
	return all[len(all)*p/100]
}

// TestIntrospectiveBursts compares a server beside a training that is scaled
// with one that has its request and no more. A host that stalls delays the
// scaled one more, so the best of six comparisons counts.
func TestIntrospectiveBursts(t *testing.T) {
	t.Parallel()
	for range 6 {
		fixed, trainingFixed := latencies(t, scaling(t), elastic(0.3, 0.3))
		scaled, trainingScaled := latencies(t, scaling(t), elastic(0.3, 0.6))
		t.Logf("p50 %.1f ms scaled, %.1f ms fixed; p95 %.1f ms scaled, %.1f ms fixed; training %.3f and %.3f of the GPU",
			percentile(scaled, 50), percentile(fixed, 50), percentile(scaled, 95), percentile(fixed, 95), trainingScaled, trainingFixed)
		if percentile(scaled, 50) <= 0.8*percentile(fixed, 50) && trainingScaled >= 0.2 {
			return
		}
	}
	t.Error("half of the requests take more than 0.8 of what they take without, or the training starves")
}
