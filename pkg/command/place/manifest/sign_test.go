package manifest

import (
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/plan"
)

// TestSigned: Compose's loader reads a signed manifest without any settings. Each instance has a secret of its own,
// and a grant for this secret, its node and its slice in the plan.
func TestSigned(t *testing.T) {
	p, o := example()
	origin := 0.0
	one := inst("resnet-1", "resnet", size{sm: 50, quota: 0.5, mem: 100})
	one.X, one.Y = &origin, &origin
	p.GPUs = append(p.GPUs, plan.GPU{Node: "n1", Index: 0, MemMiB: 16384, Instances: []plan.Instance{one}})
	o.Inventory = append(o.Inventory, plan.Device{Node: "n1", Index: 0})
	key, now := grant.GenerateKey(), time.Now()
	o.Signer, o.Node = NewSigner(key, now, time.Hour), "n0"
	trust := grant.TrustOf(key.Public())
	for name, format := range map[string]func(plan.Plan, Options) (Manifest, error){"compose": Compose, "swarm": Swarm} {
		for _, simulated := range []bool{false, true} {
			o.Simulated = simulated
			m, err := format(p, o)
			if err != nil {
				t.Fatal(err)
			}
			project, err := readCompose(m.Text, nil)
			if err != nil {
				t.Fatalf("load the %s file without settings: %v, in\n%s", name, err, m.Text)
			}
			if strings.Contains(string(m.Text), "gfaas register") {
				t.Errorf("%s file mentions gfaas register, want none with a signature:\n%s", name, m.Text)
			}
			secrets := map[string]bool{}
			for _, s := range project.Services {
				text, secret := *s.Environment["GFAAS_GRANT"], *s.Environment["GFAAS_SECRET"]
				g, err := trust.Verify(text)
				if err != nil {
					t.Fatalf("grant of %s: %v", s.Name, err)
				}
				if secrets[secret] || len(secret) < 32 {
					t.Errorf("secret of %s: got %q, want a long one of its own", s.Name, secret)
				}
				secrets[secret] = true
				node := map[bool]string{false: "n0", true: "n1"}[g.Instance == "resnet-1"]
				if g.Secret != grant.HashOf(secret) || g.Instance != *s.Environment["GFAAS_INSTANCE"] || g.Node != node || g.Serial != uint64(now.UnixMilli()) {
					t.Errorf("grant of %s: got %+v, want its secret, its instance and node %s", s.Name, g, node)
				}
				if turns := len(g.GPUs[0].Turns); turns != map[bool]int{true: 1}[g.Instance == "resnet-1"] { // the timetable of n0 is infeasible
					t.Errorf("grant of %s: got %d turns, want one only for resnet-1", s.Name, turns)
				}
				if got, want := s.Volumes[0].Source, "/run/gfaas/granted"; got != want {
					t.Errorf("folder of the socket of %s: got %s, want %s", s.Name, got, want)
				}
			}
			if want := map[string]int{"compose": 3, "swarm": 4}[name]; len(secrets) != want {
				t.Errorf("instances of the %s file: got %d, want %d", name, len(secrets), want)
			}
			g, _ := trust.Verify(*project.Services["resnet-0"].Environment["GFAAS_GRANT"])
			device := gpu.Device{Index: 0, Simulated: simulated}.String()
			if a := g.GPUs[0]; len(g.GPUs) != 1 || a.GPU != device || a.SMPct != 12 || a.QuotaRequest != 0.4 || a.QuotaLimit != 0.8 || a.MemLimit.MiB() != 1525.5 || g.SLOMS != 69 {
				t.Errorf("grant of resnet-0: got %+v, want its slice and objective on GPU %s", g, device)
			}
			if g, _ := trust.Verify(*project.Services["llm-0"].Environment["GFAAS_GRANT"]); len(g.GPUs) != 2 {
				t.Errorf("grant of llm-0: got %+v, want two GPUs", g)
			}
		}
	}
}
