package manifest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
)

// readCompose parses a Compose or stack file with Compose's own loader. It validates the schema and
// substitutes variables.
func readCompose(text []byte, env map[string]string, how ...func(*loader.Options)) (*types.Project, error) {
	details := types.ConfigDetails{
		WorkingDir:  "/nowhere",
		ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: text}},
		Environment: env,
	}
	how = append(how, func(o *loader.Options) {
		o.SetProjectName("test", true)
		o.ResolvePaths = false
	})
	return loader.LoadWithContext(context.Background(), details, how...)
}

// TestComposeReadsManifest checks that Compose's loader finds the values of the plan, even if a function's
// environment contains variables and dollar signs.
func TestComposeReadsManifest(t *testing.T) {
	p, o := example()
	env := map[string]string{"GFAAS_SECRET": "s", "GFAAS_RUN_DIR": "/my/run", "GFAAS_USER": "1000:1000", "HOME": "/root", "X": "x"}
	for _, format := range []func(plan.Plan, Options) (Manifest, error){Compose, Swarm} {
		for _, version := range []int{1, 2} {
			o.Compose = version
			m, err := format(p, o)
			if err != nil {
				t.Fatal(err)
			}
			// The loader accepts files for docker-compose 1, but rejects their form of the
			// limit on processes as inconsistent.
			older := func(o *loader.Options) { o.SkipConsistencyCheck = version == 1 }
			project, err := readCompose(m.Text, env, older)
			if err != nil {
				t.Fatalf("load the Compose file: %v, in\n%s", err, m.Text)
			}
			s := project.Services["resnet-0"]
			if got := slices.Collect(maps.Keys(project.Services)); len(got) != 3 {
				t.Errorf("services: got %v, want 3", got)
			}
			if !slices.Equal(s.Entrypoint, []string{"./server", "--home=$HOME", "$(X)"}) || s.User != "1000:1000" {
				t.Errorf("resnet-0 starts %q as %s, want ./server with $ kept in its arguments, as 1000:1000", s.Entrypoint, s.User)
			}
			for name, want := range map[string]string{
				"PRICE": "$5 $(X)", "YES": "yes", "PORT": "9000", "GFAAS_SECRET": "s", "GFAAS_INSTANCE": "resnet-0", "GFAAS_SOCKET": "/opt/gfaas/run/token.sock",
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12", "CUDA_VISIBLE_DEVICES": "0", "LD_PRELOAD": "/opt/gfaas/libgfaas.so",
			} {
				if got := s.Environment[name]; got == nil || *got != want {
					t.Errorf("%s is %v, want %q", name, got, want)
				}
			}
			var mounts []string
			for _, v := range s.Volumes {
				mounts = append(mounts, v.Source+" "+v.Target)
			}
			if want := []string{"/my/run/client/resnet-0 /opt/gfaas/run", "/usr/local/lib/gfaas/libgfaas.so /opt/gfaas/libgfaas.so", "/run/gfaas/mps/pipe /tmp/nvidia-mps"}; !slices.Equal(mounts[:3], want) {
				t.Errorf("mounts %q, want %q", mounts, want)
			}
			if service := project.Services["odd-name-0"]; service.Deploy.Resources.Limits.MemoryBytes != 4<<30 || service.Deploy.Resources.Limits.NanoCPUs != 1.5 || !service.ReadOnly {
				t.Errorf("odd-name-0: got the limits %+v and a read-only file system %v, want 4 GiB, 1.5 CPUs and true", service.Deploy.Resources.Limits, service.ReadOnly)
			}
			delete(env, "GFAAS_SECRET")
			if _, err := readCompose(m.Text, env); err == nil || !strings.Contains(err.Error(), "gfaas register") {
				t.Errorf("Compose file without GFAAS_SECRET: got the error %v, want one that names gfaas register", err)
			}
			env["GFAAS_SECRET"] = "s"
		}
	}
}

// TestComposeHasGPUs checks how each engine assigns GPUs: Compose by devices, and a swarm by generic
// resources and NVIDIA's variable.
func TestComposeHasGPUs(t *testing.T) {
	p, o := example()
	for _, simulated := range []bool{false, true} {
		o.Simulated = simulated
		one, err := Compose(p, o)
		if err != nil {
			t.Fatal(err)
		}
		many, err := Swarm(p, o)
		if err != nil {
			t.Fatal(err)
		}
		compose, err := readCompose(one.Text, map[string]string{"GFAAS_SECRET": "s"})
		if err != nil {
			t.Fatal(err)
		}
		stack, err := readCompose(many.Text, map[string]string{"GFAAS_SECRET": "s"})
		if err != nil {
			t.Fatal(err)
		}
		llm, task := compose.Services["llm-0"], stack.Services["llm-0"]
		switch r := llm.Deploy.Resources.Reservations; {
		case simulated && r != nil:
			t.Errorf("reservations on the simulated GPU: got %+v, want none", r)
		case !simulated && !slices.Equal(r.Devices[0].IDs, []string{"GPU-a", "GPU-c"}):
			t.Errorf("reserved devices: got %+v, want GPU-a and GPU-c", r)
		}
		if got := *llm.Environment["CUDA_VISIBLE_DEVICES"]; got != map[bool]string{false: "0,1", true: "0,2"}[simulated] {
			t.Errorf("CUDA_VISIBLE_DEVICES, simulated %v: got %s, want both GPUs as the container numbers them", simulated, got)
		}
		if _, given := task.Environment["NVIDIA_VISIBLE_DEVICES"]; given == simulated {
			t.Errorf("NVIDIA_VISIBLE_DEVICES, simulated %v: got it set %v, want %v", simulated, given, !simulated)
		}
		var kinds []string
		for _, g := range task.Deploy.Resources.Reservations.GenericResources {
			kinds = append(kinds, g.DiscreteResourceSpec.Kind)
			if g.DiscreteResourceSpec.Value != 50 {
				t.Errorf("reserved resource: got %+v, want the value 50", g.DiscreteResourceSpec)
			}
		}
		if !slices.Equal(kinds, []string{"gfaas-gpu0", "gfaas-gpu2"}) || !slices.Equal(task.Deploy.Placement.Constraints, []string{"node.hostname==n0"}) {
			t.Errorf("reservation of a swarm: got %v with the placement %v, want gfaas-gpu0 and gfaas-gpu2 on node n0", kinds, task.Deploy.Placement)
		}
	}
}

// TestSwarmReadsAnyPlan checks for random plans that a swarm's reservations do not exceed a GPU's SM time,
// except for rounding below one percent, and that every instance has one service with one task.
func TestSwarmReadsAnyPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		functions := drawFunctions(t, p)
		m, err := Swarm(p, Options{Reserve: true, Functions: functions, NodeLabel: rapid.SampledFrom([]string{"", "place"}).Draw(t, "label")})
		if err != nil {
			t.Fatal(err)
		}
		project, err := readCompose(m.Text, map[string]string{"GFAAS_SECRET": "s"})
		if err != nil {
			t.Fatalf("load the stack: %v, in\n%s", err, m.Text)
		}
		sum, most, n := map[string]int{}, map[string]int{}, 0
		for _, s := range project.Services {
			for _, g := range s.Deploy.Resources.Reservations.GenericResources {
				sum[g.DiscreteResourceSpec.Kind] += int(g.DiscreteResourceSpec.Value)
			}
			fn := functions[slices.IndexFunc(functions, func(f function.Function) bool { return f.Name == s.Labels["gfaas.function"] })]
			if *s.Environment["A"] != fn.Env["A"] || !slices.Equal(s.Entrypoint, fn.Command) {
				t.Fatalf("service of %s: got the command %q with A=%q, want %q with A=%q", fn.Name, s.Entrypoint, *s.Environment["A"], fn.Command, fn.Env["A"])
			}
			if *s.Deploy.Replicas != 1 || s.Labels["gfaas.instance"] != *s.Environment["GFAAS_INSTANCE"] {
				t.Fatalf("service of %s: got %d replicas with GFAAS_INSTANCE %s, want 1 with its label", s.Labels["gfaas.instance"], *s.Deploy.Replicas, *s.Environment["GFAAS_INSTANCE"])
			}
		}
		for _, g := range p.GPUs {
			most[gpuResource(g.Index)] = 100
			for _, in := range g.Instances {
				n++
				if in.SMPct*in.QuotaRequest < 1 {
					most[gpuResource(g.Index)]++
				}
			}
		}
		for kind, percent := range sum {
			if percent > most[kind] {
				t.Fatalf("reservations of %s: got %d%%, want at most %d%%", kind, percent, most[kind])
			}
		}
		if n != len(project.Services) {
			t.Fatalf("services: got %d, want %d, one for each instance", len(project.Services), n)
		}
	})
}

// drawFunctions draws functions for a plan, with texts that could be mistaken for variables.
func drawFunctions(t *rapid.T, p plan.Plan) (out []function.Function) {
	text := rapid.StringMatching(`[ -~]{0,12}`)
	seen := map[string]bool{}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			if !seen[in.Function] {
				seen[in.Function] = true
				out = append(out, function.Function{Name: in.Function, Image: "registry/a:1", Port: 8080,
					Env: map[string]string{"A": text.Draw(t, "A")}, Command: []string{"./a", text.Draw(t, "argument")}})
			}
		}
	}
	return out
}
