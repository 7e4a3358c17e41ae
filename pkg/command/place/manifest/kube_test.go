package manifest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
)

// kubetypes builds the program that reads objects like the API server. It compiles the Kubernetes types,
// so only make kube-check runs it.
func kubetypes(t *testing.T) string {
	t.Helper()
	if os.Getenv("GFAAS_KUBETYPES") == "" {
		t.Skip("GFAAS_KUBETYPES is not set: make kube-check sets it")
	}
	program := filepath.Join(t.TempDir(), "kubetypes")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "kubetypes"
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kubetypes: %v\n%s", err, text)
	}
	return program
}

// readKube checks a manifest with the program and returns the version, kind and name of each object.
func readKube(program string, text []byte) ([]string, error) {
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader(text)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// TestKubernetesTypes checks that every object is valid for the API, for plans with any names.
func TestKubernetesTypes(t *testing.T) {
	program := kubetypes(t)
	for name, c := range map[string]struct {
		format func(plan.Plan, Options) (Manifest, error)
		kinds  []string
	}{
		"hami": {HAMi, []string{"v1 Service resnet", "apps/v1 Deployment llm-0"}},
		"dra":  {DRA, []string{"v1 Service resnet", "apps/v1 Deployment llm-0", "resource.k8s.io/v1 ResourceClaimTemplate odd-name-0"}},
	} {
		p, o := example()
		m, err := c.format(p, o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readKube(program, m.Text)
		if err != nil {
			t.Fatalf("%s: the API refuses the manifest, want it accepted: %v", name, err)
		}
		for _, want := range c.kinds {
			if !slices.Contains(got, want) {
				t.Errorf("%s: %s is not among %q", name, want, got)
			}
		}
		for _, c := range []struct{ from, to string }{
			{"replicas: 1", "replica: 1"}, {"replicas: 1", "replicas: one"}, {"name: function", "Name: function"}, {"containerPort: 9000", "containerPort: 900000"},
		} {
			if _, err := readKube(program, bytes.ReplaceAll(m.Text, []byte(c.from), []byte(c.to))); err == nil {
				t.Errorf("%s with %s: got no error, want one", name, c.to)
			}
		}
		rapid.Check(t, func(t *rapid.T) {
			m, err := c.format(drawPlan(t), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := readKube(program, m.Text); err != nil {
				t.Fatal(err)
			}
		})
	}
}
