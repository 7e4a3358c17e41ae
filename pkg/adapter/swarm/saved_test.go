package swarm

import (
	"slices"
	"strings"
	"testing"

	dockerswarm "github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// gatewayOf returns a Runtime that owns the instances of a fake swarm with the service s of instance f-0.
func gatewayOf(t *testing.T) (*Runtime, *fakeManagers) {
	t.Helper()
	r, m := fakeSwarm(t)
	service := &dockerswarm.Service{ID: "s"}
	service.Spec.Name, service.Spec.Labels = "gfaas-f-0", map[string]string{labelGateway: DefaultNetwork, instance.LabelInstance: "f-0", instance.LabelFunction: "f"}
	m.services = []*dockerswarm.Service{service}
	if err := r.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, m
}

func functions(t *testing.T, text string) []function.Function {
	t.Helper()
	list, err := function.Parse(strings.NewReader(text), "test")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// names returns the names of the configs of functions.
func (m *fakeManagers) names() (names []string) {
	for _, c := range m.configs {
		if c.Spec.Labels[instance.LabelFunction] != "" {
			names = append(names, c.Spec.Name[:7]+c.Spec.Name[strings.LastIndex(c.Spec.Name, "-"):])
		}
	}
	slices.Sort(names)
	return names
}

// A successor loads what was saved: the newest version of each function, and the records of ready instances.
func TestSaveAndLoad(t *testing.T) {
	r, m := gatewayOf(t)
	if s, err := r.Load(t.Context()); s != nil || err != nil {
		t.Fatalf("before the first save: %v, %v", s, err)
	}
	record := instance.Record{ID: "f-0", Function: "f", Runtime: instance.Swarm, GPUs: []string{"b/0"}, Slice: gpu.Slice{SMPct: 50}, State: instance.Starting, Owner: instance.Gateway}
	record.Handle = instance.Handle{Runtime: instance.Swarm, Container: "s", Address: "10.0.0.2:8080"}
	state := Saved{Writer: "w", Instances: []instance.Record{record}, Functions: functions(t, "name: f\nimage: a\n---\nname: g\nimage: b\n")}
	state.Functions[0].Dir = "/somewhere"
	save := func(want string, changes int) {
		t.Helper()
		before := m.changes
		if err := r.Save(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(m.names(), " "); got != want || m.changes-before != changes {
			t.Errorf("configs %s after %d changes, want %s after %d", got, m.changes-before, want, changes)
		}
	}
	save("gfaas-f-v1 gfaas-g-v1", 3) // with the writer; an instance that is not ready is not saved
	save("gfaas-f-v1 gfaas-g-v1", 0)
	state.Instances[0].State = instance.Ready
	state.Functions[0].Image = "c"
	save("gfaas-f-v2 gfaas-g-v1", 3)
	state.Functions = state.Functions[:1]
	save("gfaas-f-v2", 1)

	successor := another(r, r.view)
	got, err := successor.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Writer != "w" || len(got.Functions) != 1 || got.Functions[0].Image != "c" || got.Functions[0].Dir != "/somewhere" {
		t.Errorf("loaded %+v", got)
	}
	if len(got.Instances) != 1 || got.Instances[0].ID != "f-0" || got.Instances[0].State != instance.Ready || got.Instances[0].Handle != record.Handle || got.Instances[0].Slice != record.Slice {
		t.Errorf("loaded instances %+v, want the ready one", got.Instances)
	}
}

// If a gateway ends between the creation of a version and the removal of the one before, the newest version counts.
func TestLoadNewestVersion(t *testing.T) {
	r, m := gatewayOf(t)
	state := Saved{Writer: "w", Functions: functions(t, "name: f\nimage: a\n")}
	if err := r.Save(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	old := *m.configs[1]
	for range 10 { // version 10 is newer than version 9
		state.Functions[0].Image += "a"
		if err := r.Save(t.Context(), state); err != nil {
			t.Fatal(err)
		}
	}
	old.ID = "old"
	m.configs = append(m.configs, &old)
	got, err := r.Load(t.Context())
	if err != nil || len(got.Functions) != 1 || got.Functions[0].Image != state.Functions[0].Image {
		t.Errorf("loaded %+v, %v", got, err)
	}
	if err := r.Save(t.Context(), state); err != nil || len(m.names()) != 1 {
		t.Errorf("configs %v after the next save, %v; want one", m.names(), err)
	}
}

// Damaged configs and labels are errors that name the object and the next step.
func TestLoadDamaged(t *testing.T) {
	for _, c := range []struct {
		name, want, hint string
		damage           func(*fakeManagers)
	}{
		{"no YAML", ": function.yaml:1: ", "docker config rm gfaas-f-", func(m *fakeManagers) { m.configs[1].Spec.Data = []byte("{") }},
		{"unknown key", "unknown key", "apply the function f again", func(m *fakeManagers) {
			m.configs[1].Spec.Data = append(m.configs[1].Spec.Data, "next_year: 1\n"...)
		}},
		{"another function", "exactly the function f", "docker config rm", func(m *fakeManagers) { m.configs[1].Spec.Data = []byte("name: g\nimage: a\n") }},
		{"version", `gfaas.version is "new"`, "docker config rm", func(m *fakeManagers) { m.configs[1].Spec.Labels[labelVersion] = "new" }},
		{"record", "gfaas.record of the service gfaas-f-0", "docker service rm gfaas-f-0", func(m *fakeManagers) { m.services[0].Spec.Labels[labelRecord] = "{" }},
		{"record of another instance", "another instance than f-0", "docker service rm", func(m *fakeManagers) { m.services[0].Spec.Labels[labelRecord] = `{"id": "f-1"}` }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, m := gatewayOf(t)
			if err := r.Save(t.Context(), Saved{Writer: "w", Functions: functions(t, "name: f\nimage: a\n")}); err != nil {
				t.Fatal(err)
			}
			c.damage(m)
			_, err := r.Load(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(ports.Hint(err), c.hint) {
				t.Errorf("error %v, hint %q; want %q and %q", err, ports.Hint(err), c.want, c.hint)
			}
		})
	}
}

// A function that a config cannot hold is an error, and all others are saved.
func TestSaveTooLarge(t *testing.T) {
	r, m := gatewayOf(t)
	state := Saved{Writer: "w", Functions: functions(t, "name: f\nimage: a\n---\nname: g\nimage: b\n")}
	state.Functions[0].Env = map[string]string{"LARGE": strings.Repeat("x", maxFunction)}
	err := r.Save(t.Context(), state)
	if err == nil || !strings.Contains(err.Error(), "save the function f in the swarm: it has 500") {
		t.Errorf("error %v", err)
	}
	if got := strings.Join(m.names(), " "); got != "gfaas-g-v1" {
		t.Errorf("configs %s, want the one of g", got)
	}
}

// If a function has become too large for a config, the error says that a successor would have the version before.
func TestSaveTooLargeLater(t *testing.T) {
	r, m := gatewayOf(t)
	state := Saved{Writer: "w", Functions: functions(t, "name: f\nimage: a\n")}
	if err := r.Save(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	state.Functions[0].Env = map[string]string{"LARGE": strings.Repeat("x", maxFunction)}
	err := r.Save(t.Context(), state)
	if got := strings.Join(m.names(), " "); err == nil || !strings.Contains(err.Error(), "another node would have version 1") || got != "gfaas-f-v1" {
		t.Errorf("error %v, configs %s; want that a gateway on another node would have version 1", err, got)
	}
}
