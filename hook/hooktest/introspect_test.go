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
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// scaling returns a host whose daemon uses the introspective policy.
func scaling(t *testing.T) *host {
	t.Helper()
	return startPriorityHost(t, "--policy", policy.Introspection)
}

// registerSLO registers an instance with a latency objective.
func (h *host) registerSLO(id string, s gpu.Slice, ms float64) []string {
	h.t.Helper()
	secret := preload.NewSecret()
	_, err := h.client.Register(context.Background(), wire.Registration{
		Instance: id, Function: id, Secret: secret, SLOMS: ms,
		Allocation: wire.Allocation{GPU: "sim", SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.environ(id, secret, s)
}

func elastic(request, limit float64) gpu.Slice {
	return gpu.Slice{SMPct: 100, QuotaRequest: request, QuotaLimit: limit}
}

// awaitShare waits for a saturate program and returns the share of the GPU that it had. It
// is computed from the program's count of kernels and the cost of a kernel on the
// simulated driver, in us, so nothing is estimated.
func awaitShare(t *testing.T, p *program, us float64) float64 {
	t.Helper()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	var report struct {
		Launches float64
		S        float64 `json:"elapsed_s"`
	}
	if err := json.Unmarshal([]byte(p.out.String()), &report); err != nil {
		t.Fatalf("parse the program's report %s: %v", p.out.String(), err)
	}
	return report.Launches * us / 1e6 / report.S
}

// rounds is the number of budget updates per window, one every 5 ms.
const rounds = 20

// shareAlone runs a saturate program alone on the GPU. It returns the program's share and an
// upper bound of the time that the host may have taken.
func shareAlone(t *testing.T, limit float64, us, blocks string, kernelUS float64) (share, stalled float64) {
	t.Helper()
	h := scaling(t)
	w := h.startWitness(rounds, window, 2*time.Second)
	p := h.run(h.register("a", elastic(limit/2, limit)), "victim/saturate", "3", us, blocks, "0")
	return awaitShare(t, p, kernelUS), w.stalled()
}

// TestIntrospectiveAlone checks that a program alone gets its limit as a fraction of
// its share without a limit, whatever the length and the blocks of its kernels, except
// for the time that the host takes. It never exceeds the limit.
func TestIntrospectiveAlone(t *testing.T) {
	for _, tt := range []struct {
		us, blocks string
		kernelUS   float64
	}{{"1000", "7", 1000}, {"20", "800", 200}} {
		t.Run(fmt.Sprintf("kernels of %v us", tt.kernelUS), func(t *testing.T) {
			t.Parallel()
			// The witness does not cover the whole life of the program, so too low a
			// share is measured again; too high a share is final.
			for end := time.Now().Add(time.Minute); ; {
				free, _ := shareAlone(t, 1, tt.us, tt.blocks, tt.kernelUS)
				limited, stalled := shareAlone(t, 0.8, tt.us, tt.blocks, tt.kernelUS)
				t.Logf("%s blocks: %.4f of the GPU without a limit, %.4f with one of 0.8", tt.blocks, free, limited)
				least := 0.8*free - 0.03 - stalled
				if limited <= 0.82 && limited > least {
					return
				}
				if limited > 0.82 || time.Now().After(end) {
					t.Fatalf("share of the GPU: got %.4f, want %.4f to 0.82", limited, least)
				}
			}
		})
	}
}

// TestIntrospectiveTwo runs two programs with kernels of very different sizes side by
// side. Each does its request as a fraction of all work, and the remaining work is
// divided in proportion. The host may delay the launches of one program, which leaves
// more to the other. Neither ever exceeds its limit.
func TestIntrospectiveTwo(t *testing.T) {
	t.Parallel()
	h := scaling(t)
	w := h.startWitness(rounds, window, 5*time.Second)
	a := h.run(h.register("a", elastic(0.3, 0.8)), "victim/saturate", "6", "100", "80", "0")
	b := h.run(h.register("b", elastic(0.5, 0.8)), "victim/saturate", "6", "20", "800", "0")
	h.eventually("both programs run with a budget", func() bool {
		rowA, _ := h.row("a")
		rowB, _ := h.row("b")
		return rowA.State == "running" && rowB.State == "running" && rowA.BudgetBlocks > 0 && rowB.BudgetBlocks > 0
	})
	shareA, shareB, stalled := awaitShare(t, a, 100), awaitShare(t, b, 200), w.stalled()
	sum := shareA + shareB
	t.Logf("requests 0.3 and 0.5, limits 0.8: %.4f and %.4f, sum %.4f", shareA, shareB, sum)
	if shareA > 0.82 || shareB > 0.82 {
		t.Errorf("shares of the GPU: got %.4f and %.4f, want at most 0.82 each", shareA, shareB)
	}
	if shareA < 0.3*sum-stalled || shareB < 0.5*sum-stalled {
		t.Errorf("shares of the GPU: got %.4f and %.4f, want at least %.4f and %.4f, the requests as fractions of the sum less %.4f", shareA, shareB, 0.3*sum-stalled, 0.5*sum-stalled, stalled)
	}
}

// latencies runs a server with bursts and a training program side by side. It returns
// the latencies of the requests, in ms, and the training program's share of the GPU.
func latencies(t *testing.T, h *host, server gpu.Slice) (all [][]float64, training float64) {
	t.Helper()
	other := h.run(h.register("training", elastic(0.4, 0.9)), "victim/saturate", "60", "100", "80", "0")
	h.eventually("the training program runs", func() bool { row, _ := h.row("training"); return row.Launches > 1000 })
	p := h.run(h.registerSLO("server", server, 50), "check/serve", "7", "12", "30", "300", "100", "100", "80")
	if err := p.wait(); err != nil {
		t.Fatalf("server: %v: %s", err, p.errout.String())
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
	return all[1:], awaitShare(t, other, 100) // during the first burst, the server is still measured
}

func percentile(of [][]float64, p int) float64 {
	all := slices.Concat(of...)
	slices.Sort(all)
	return all[len(all)*p/100]
}

// TestIntrospectiveBursts compares a server that is scaled with a server that is fixed
// to its request, each side by side with a training program. A host that stalls delays
// the scaled server more, because its work takes a share of the remaining time.
func TestIntrospectiveBursts(t *testing.T) {
	t.Parallel()
	fixed, trainingFixed := latencies(t, scaling(t), elastic(0.3, 0.3))
	h := scaling(t)
	w := h.startWitness(rounds, window, 4*time.Second)
	scaled, trainingScaled := latencies(t, h, elastic(0.3, 0.6))
	stalled := min(w.stalled(), 0.99)
	t.Logf("p50 %.1f ms scaled, %.1f ms fixed; p95 %.1f ms scaled, %.1f ms fixed; training %.3f and %.3f of the GPU",
		percentile(scaled, 50), percentile(fixed, 50), percentile(scaled, 95), percentile(fixed, 95), trainingScaled, trainingFixed)
	if percentile(scaled, 50) > 0.8*percentile(fixed, 50)/(1-stalled) {
		t.Errorf("p50 of the scaled server: got %.1f ms, want at most %.1f ms, 0.8 of the fixed server's", percentile(scaled, 50), 0.8*percentile(fixed, 50)/(1-stalled))
	}
	if trainingScaled < 0.2-stalled {
		t.Errorf("share of the training program: got %.3f, want at least %.3f", trainingScaled, 0.2-stalled)
	}
}
