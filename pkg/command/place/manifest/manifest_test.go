package manifest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
)

var update = flag.Bool("update", false, "write the golden files anew; look at them afterwards")

// size is the slice of an instance: its SM share in percent, its quota and its memory in MiB.
type size struct {
	sm    float64
	quota float64
	mem   float64
}

func inst(id string, function string, s size) plan.Instance {
	return plan.Instance{ID: id, Function: function, SMPct: s.sm, QuotaRequest: s.quota, QuotaLimit: s.quota, Batch: 1, RPS: 10.5, MemMiB: s.mem}
}

// example returns a plan with all features: rectangles, a burst, a batch, an instance on two GPUs, shared
// weights, and names that are not DNS labels.
func example() (plan.Plan, Options) {
	x, y := 0.4, 12.0
	resnet := inst("resnet-0", "resnet", size{sm: 12, quota: 0.4, mem: 1427.5})
	resnet.X, resnet.Y, resnet.QuotaLimit, resnet.Batch = &x, &y, 0.8, 4
	named := inst("Odd_Name.0", "Odd_Name", size{sm: 33.3, quota: 1})
	wide := inst("llm-0", "llm", size{sm: 100, quota: 0.5, mem: 8000})
	p := plan.Plan{Version: 1, Model: plan.ModelRect, GPUs: []plan.GPU{
		{Node: "n0", Index: 0, MemMiB: 16384, Instances: []plan.Instance{resnet, wide}, Models: []plan.Model{{Name: "resnet50", MemMiB: 98}}},
		{Node: "n0", Index: 2, MemMiB: 16384, Instances: []plan.Instance{wide, named}},
	}}
	return p, Options{
		Functions: []function.Function{
			{Name: "resnet", Image: "registry/resnet:1", Command: []string{"./server", "--home=$HOME", "$(X)"}, Port: 9000,
				Env: map[string]string{"PRICE": "$5 $(X)", "YES": "yes"}, Model: &function.Model{Name: "resnet50"}, SLO: 69e6},
			{Name: "llm", Image: "registry/llm:1", Port: 8080, GPUs: 2, GPUMem: 9000 * gpu.MiB},
			{Name: "Odd_Name", Image: "registry/odd:1", Port: 8080, Restart: "always", ReadOnly: true, Env: map[string]string{"LD_PRELOAD": "/own.so"},
				Limits: function.Limits{Memory: 4 * gpu.GiB, Pids: 512, CPUs: 1.5}},
		},
		Inventory: []plan.Device{{Node: "n0", Index: 0, UUID: "GPU-a"}, {Node: "n0", Index: 2, UUID: "GPU-c"}}, Reserve: true,
	}
}

func TestGolden(t *testing.T) {
	for _, k := range Kinds() {
		name, format := k.Name, k.Write
		for _, how := range []string{"", "-bare"} {
			t.Run(name+how, func(t *testing.T) {
				p, o := example()
				if how == "-bare" {
					o = Options{}
				}
				m, err := format(p, o)
				if err != nil {
					t.Fatal(err)
				}
				got := "# stderr:\n# " + strings.Join(m.Warnings, "\n# ") + "\n" + string(m.Text)
				path := "testdata/" + name + how + ".yaml"
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if got != string(want) {
					t.Errorf("%s differs from the output, want the same; regenerate it with go test -update", path)
				}
			})
		}
	}
}

// strict decodes documents and rejects keys that the types do not have.
func strict(t fataler, text []byte, into func(kind string) any) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("parse the manifest: %v, in\n%s", err, text)
		}
		var head struct {
			Kind string `yaml:"kind"`
		}
		if err := node.Decode(&head); err != nil {
			t.Fatalf("decode the kind of an object: %v", err)
		}
		one, err := yaml.Marshal(&node)
		if err != nil {
			t.Fatalf("encode an object again: %v", err)
		}
		again := yaml.NewDecoder(bytes.NewReader(one))
		again.KnownFields(true)
		if err := again.Decode(into(head.Kind)); err != nil {
			t.Fatalf("decode a %s strictly: %v, in\n%s", head.Kind, err, one)
		}
	}
}

type fataler interface{ Fatalf(string, ...any) }

// objects holds the objects of a Kubernetes manifest.
type objects struct {
	services    []*kubeService
	deployments []*deployment
	claims      []*claimTemplate
}

func readObjects(t fataler, text []byte) objects {
	var o objects
	strict(t, text, func(kind string) any {
		switch kind {
		case "Service":
			o.services = append(o.services, &kubeService{})
			return o.services[len(o.services)-1]
		case "Deployment":
			o.deployments = append(o.deployments, &deployment{})
			return o.deployments[len(o.deployments)-1]
		case "ResourceClaimTemplate":
			o.claims = append(o.claims, &claimTemplate{})
			return o.claims[len(o.claims)-1]
		}
		t.Fatalf("kind of an object: got %q, want a Service, a Deployment or a ResourceClaimTemplate", kind)
		return nil
	})
	return o
}

// drawPlan draws a plan with unusual IDs and function names.
func drawPlan(t *rapid.T) plan.Plan {
	var p plan.Plan
	n := 0
	for i := range rapid.IntRange(1, 2).Draw(t, "GPUs") {
		g := plan.GPU{Node: "n", Index: i}
		free := 100.0
		for range rapid.IntRange(1, 5).Draw(t, "instances") {
			sm, quota := rapid.Float64Range(1, 100).Draw(t, "sm"), rapid.Float64Range(0.01, 1).Draw(t, "quota")
			if sm*quota > free {
				continue
			}
			free -= sm * quota
			in := inst(fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"a-", "A-", "a.", "_", "0"}).Draw(t, "id"), n),
				rapid.SampledFrom([]string{"a", "A", "b/c", "b c", "é", strings.Repeat("x", 80)}).Draw(t, "function"), size{sm: sm, quota: quota, mem: float64(rapid.IntRange(0, 900).Draw(t, "mem"))})
			g.Instances = append(g.Instances, in)
			n++
		}
		p.GPUs = append(p.GPUs, g)
	}
	return p
}

var (
	dnsLabel   = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	quantity   = regexp.MustCompile(`^[1-9][0-9]*(Mi)?$`)
)

func checkMeta(t fataler, m meta, names map[string]bool) {
	if !dnsLabel.MatchString(m.Name) || len(m.Name) > 63 || names[m.Name] {
		t.Fatalf("name of an object: got %q, want a unique DNS label of at most 63 characters", m.Name)
	}
	names[m.Name] = true
	for key, value := range m.Labels {
		if !labelValue.MatchString(value) || len(value) > 63 {
			t.Fatalf("label %s: got %q, want a label value of at most 63 characters", key, value)
		}
	}
}

// TestKubernetesReadsBack checks that manifests decode strictly, that names are valid and unique, that every
// instance occurs once, and that requests do not exceed the GPUs.
func TestKubernetesReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		for _, format := range []func(plan.Plan, Options) (Manifest, error){HAMi, DRA} {
			m, err := format(p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			o := readObjects(t, m.Text)
			deployments, services, claims := map[string]bool{}, map[string]bool{}, map[string]bool{}
			for _, s := range o.services {
				checkMeta(t, s.Metadata, services)
			}
			for _, c := range o.claims {
				checkMeta(t, c.Metadata, claims)
			}
			ids := map[string]*deployment{}
			for _, d := range o.deployments {
				checkMeta(t, d.Metadata, deployments)
				if !services[d.Metadata.Labels[labelName]] {
					t.Fatalf("deployment %v: its label names no service, want one", d.Metadata)
				}
				ids[d.Metadata.Annotations["gfaas/instance"]] = d
			}
			for _, g := range p.GPUs {
				sum, tiny := 0, 0
				for _, in := range g.Instances {
					d := ids[in.ID]
					if d == nil {
						t.Fatalf("instance %s: got no deployment, want one", in.ID)
					}
					sum += cores(t, d, o.claims)
					if in.SMPct*in.QuotaRequest < 1 {
						tiny++
					}
					delete(ids, in.ID)
				}
				if sum > 100+tiny {
					t.Fatalf("requests on the GPU %+v: got %d%%, want at most %d%%", g, sum, 100+tiny)
				}
			}
			if len(ids) > 0 {
				t.Fatalf("deployments of no instance: got %v, want none", ids)
			}
		}
	})
}

// cores returns the cores that a deployment requests on each GPU, by its limits or its claim.
func cores(t fataler, d *deployment, claims []*claimTemplate) int {
	c := d.Spec.Template.Spec.Containers[0]
	requested := c.Resources.Limits
	cores := requested["nvidia.com/gpucores"]
	if len(claims) > 0 {
		i := slices.IndexFunc(claims, func(c *claimTemplate) bool {
			return c.Metadata.Name == d.Spec.Template.Spec.ResourceClaims[0].ResourceClaimTemplateName
		})
		requested = claims[i].Spec.Spec.Devices.Requests[0].Exactly.Capacity.Requests
		cores = requested["cores"]
	}
	for name, q := range requested {
		if !quantity.MatchString(q) {
			t.Fatalf("request %s: got %q, want a quantity", name, q)
		}
	}
	n := 0
	if _, err := fmt.Sscan(cores, &n); err != nil || n < 1 || n > 100 {
		t.Fatalf("requested cores: got %q, want 1 to 100", cores)
	}
	return n
}

func TestComposeReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		m, err := Compose(p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var file project
		strict(t, m.Text, func(string) any { return &file })
		ids := map[string]service{}
		for name, s := range file.Services {
			if !dnsLabel.MatchString(name) {
				t.Fatalf("name of a service: got %q, want a DNS label", name)
			}
			ids[s.Labels["gfaas.instance"]] = s
		}
		n := 0
		for _, g := range p.GPUs {
			for _, in := range g.Instances {
				n++
				s, ok := ids[in.ID]
				if !ok || s.Environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "" || s.Environment["GFAAS_INSTANCE"] != in.ID || s.Deploy.Resources.Reservations.Devices[0].DeviceIDs[0] != fmt.Sprint(g.Index) {
					t.Fatalf("service of %s: got %+v, want one with its name, its GPU %d and an SM percentage", in.ID, s, g.Index)
				}
			}
		}
		if n != len(file.Services) {
			t.Fatalf("services: got %d, want %d, one for each instance", len(file.Services), n)
		}
	})
}

func TestErrors(t *testing.T) {
	p, o := example()
	p.GPUs[1].Node = "n1"
	for what, c := range map[string]struct {
		format func(plan.Plan, Options) (Manifest, error)
		o      Options
		want   string
	}{
		"two nodes":    {Compose, Options{}, "the plan has instances on 2 nodes, but a Compose file is for one node: n0, n1"},
		"no such node": {Compose, Options{Node: "m"}, `the plan has no instances on node "m", only on n0, n1`},
		"inventory":    {HAMi, o, "the plan has instances on n1 gpu 2, which is not in the inventory"},
		"no function":  {DRA, Options{Functions: o.Functions[:1]}, "the plan has instances of llm, which is not in the function file"},
		"two commands": {Swarm, Options{Functions: []function.Function{{Name: "resnet", Command: []string{"./x"}}, {Name: "llm"}, {Name: "Odd_Name", Image: "a"}}},
			"functions llm, resnet have a command but no image, and a manifest can only run containers"},
		"a job":          {Swarm, Options{Functions: []function.Function{{Name: "resnet", Image: "x", Kind: function.Training}}}, "function resnet is a job (kind: training), and a manifest describes services, which never end"},
		"only a command": {HAMi, Options{Functions: []function.Function{{Name: "resnet", Command: []string{"./x"}}}}, "function resnet has a command but no image, and a manifest can only run containers"},
	} {
		t.Run(what, func(t *testing.T) {
			if _, err := c.format(p, c.o); err == nil || err.Error() != c.want {
				t.Errorf("error: got %v, want %s", err, c.want)
			}
		})
	}
}

func TestEmptyPlan(t *testing.T) {
	for _, k := range Kinds() {
		name, format := k.Name, k.Write
		if _, err := format(plan.Plan{}, Options{}); err != nil {
			t.Errorf("%s of an empty plan: got the error %v, want none", name, err)
		}
	}
}
