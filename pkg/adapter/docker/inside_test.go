package docker

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/mount"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

func TestInsideNVIDIA(t *testing.T) {
	pipes := t.TempDir()
	r := &Runtime{config: Config{RunDir: t.TempDir(), Libs: preload.Libs{Hook: "/lib/libgfaas.so"}}}
	in, err := r.resources("a", []string{"2", "3"}, pipes)
	if err != nil {
		t.Fatal(err)
	}
	if len(in.devices) != 1 || in.devices[0].Driver != "nvidia" || !slices.Equal(in.devices[0].DeviceIDs, []string{"2", "3"}) {
		t.Errorf("device requests = %+v, want NVIDIA devices 2 and 3", in.devices)
	}
	if !in.ipc.IsHost() || !mounted(in, pipes) || !mounted(in, preload.InsideSocket) || !mounted(in, preload.InsideHook) {
		t.Errorf("container with an NVIDIA GPU: got ipc %q and mounts %+v, want the host's ipc, and mounts of the MPS pipes, the socket and the library", in.ipc, in.mounts)
	}
	// Of the run directory, it sees only the folder of its own socket.
	own := bind(filepath.Join(r.config.RunDir, "client", "a"), preload.InsideSocket, bindReadOnly)
	if !slices.Contains(in.mounts, own) {
		t.Errorf("mounts: got %+v, want %+v among them", in.mounts, own)
	}
	for _, m := range in.mounts {
		if m != own && strings.HasPrefix(m.Source, r.config.RunDir) {
			t.Errorf("mounts: got %s, want nothing else of the run directory", m.Source)
		}
	}
	added, whole, err := in.Environ(instance.Spec{ID: "a", Port: 80, Slice: gpu.Slice{SMPct: 50, Mem: gpu.GiB}}, []string{"LD_PRELOAD=/theirs.so", "A=1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CUDA_VISIBLE_DEVICES=0,1", "PORT=80", "LD_PRELOAD=/opt/gfaas/libgfaas.so:/theirs.so", "CUDA_MPS_PIPE_DIRECTORY=" + pipes, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M,1=2048M"} {
		if !slices.Contains(added, want) {
			t.Errorf("%s is not in %v", want, added)
		}
	}
	if whole["A"] != "1" {
		t.Errorf("environment: got %v, want the image's A=1 kept", whole)
	}
}

func TestInsideSimulated(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GFAAS_SIM_DIR", dir)
	t.Setenv("GFAAS_SIM_GPU", "sms=8")
	r := &Runtime{config: Config{RunDir: t.TempDir(), Libs: preload.Libs{Hook: "/lib/libgfaas.so", SimDir: "/lib/sim"}}}
	in, err := r.resources("a", []string{"sim:1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(in.devices) != 0 || in.ipc != "" || !mounted(in, dir) || !mounted(in, preload.InsideSim) {
		t.Errorf("container with the simulated GPU: got devices %v, ipc %q and mounts %+v, want no device, its own ipc, and mounts of the device's folder and the driver", in.devices, in.ipc, in.mounts)
	}
	for _, m := range in.mounts {
		if m.ReadOnly == (m.Target == dir) {
			t.Errorf("mount %s: got read-only %v, want %v", m.Target, m.ReadOnly, m.Target != dir)
		}
	}
	own, _, err := in.Environ(instance.Spec{ID: "a", Slice: gpu.Slice{SMPct: 50}, Env: map[string]string{"GFAAS_SIM_DIR": "/theirs", "GFAAS_SIM_GPU": "sms=4"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CUDA_VISIBLE_DEVICES=1", "LD_LIBRARY_PATH=/opt/gfaas/sim", "GFAAS_SIM_DIR=" + dir, "GFAAS_SIM_GPU=sms=4"} {
		if !slices.Contains(own, want) {
			t.Errorf("%s is not in %v", want, own)
		}
	}
}

// TestInsideOrder checks that a container numbers its GPUs in the machine's order, whatever
// the order of the request.
func TestInsideOrder(t *testing.T) {
	const first, second = "MIG-12345678-1234-1234-1234-123456789abc", "MIG-12345678-1234-1234-1234-123456789abd"
	for _, c := range []struct{ gpus, ids, visible string }{
		{"2,3", "2,3", "0,1"}, {"3,2", "3,2", "1,0"}, {"02,0,1", "2,0,1", "2,0,1"}, {"5", "5", "0"},
		{first, first, "0"}, {second + "," + first, second + "," + first, "0,1"},
	} {
		r := &Runtime{config: Config{RunDir: t.TempDir(), Libs: preload.Libs{Hook: "/lib/libgfaas.so"}}}
		in, err := r.resources("a", strings.Split(c.gpus, ","), "/pipes")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(in.devices[0].DeviceIDs, ","); got != c.ids {
			t.Errorf("%s: it asks for %s, want %s", c.gpus, got, c.ids)
		}
		own, _, err := in.Environ(instance.Spec{ID: "a", Slice: gpu.Slice{SMPct: 50}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"CUDA_VISIBLE_DEVICES=" + c.visible, "GFAAS_DEVICES=" + c.visible} {
			if !slices.Contains(own, want) {
				t.Errorf("%s: %s is not in %v", c.gpus, want, own)
			}
		}
	}
}

func mounted(in containerResources, target string) bool {
	return slices.ContainsFunc(in.mounts, func(m mount.Mount) bool { return m.Target == target })
}

func TestUserFor(t *testing.T) {
	for _, c := range []struct {
		wanted string
		uid    int
		want   string
		ok     bool
	}{
		{"", 0, "", true},
		{"root", 0, "root", true},
		{"0:0", 0, "0:0", true},
		{"", 1000, "1000:100", true},
		{"root", 1000, "1000:100", true},
		{"1000", 1000, "1000", true},
		{"1000:5", 1000, "1000:5", true},
		{"app", 0, "", false},
		{"1000", 0, "", false},
		{"1001", 1000, "", false},
	} {
		got, err := UserFor("image", c.wanted, c.uid, 100)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("UserFor(%q) as %d = %q, %v, want %q", c.wanted, c.uid, got, err, c.want)
		}
	}
}

func TestPullResult(t *testing.T) {
	if err := pullResult(strings.NewReader(`{"status":"Pulling"}` + "\n" + `{"status":"Done"}`)); err != nil {
		t.Error(err)
	}
	if err := pullResult(strings.NewReader(`{"status":"Pulling"}{"error":"no space"}`)); err == nil || err.Error() != "no space" {
		t.Errorf("error = %v, want no space", err)
	}
	if err := pullResult(strings.NewReader(`{"status":`)); err == nil {
		t.Error("result of a pull that breaks off: got no error, want one")
	}
}

func TestExplainGPU(t *testing.T) {
	err := explainStart("x", errors.New(`could not select device driver "nvidia" with capabilities: [[gpu]]`))
	var missing *ports.UnavailableError
	if !errors.As(err, &missing) || !missing.Unavailable() || !strings.Contains(missing.Hint(), "NVIDIA Container Toolkit") {
		t.Errorf("error = %v, want one that names the toolkit", err)
	}
}

// A container with a model reaches the model daemon only through its tenant's socket, and
// the folder of the client library follows those in its own lists.
func TestInsideModel(t *testing.T) {
	r := &Runtime{config: Config{RunDir: t.TempDir(), Libs: preload.Libs{
		Hook: "/lib/libgfaas.so", SimDir: "/lib/sim", Model: "/lib/libgfaas-model.so", Python: "/lib/python",
	}}}
	t.Setenv("GFAAS_SIM_DIR", t.TempDir())
	in, err := r.resources("a", []string{"sim"}, "")
	if err != nil {
		t.Fatal(err)
	}
	in.addModels("/run/gfaas/model/blue", r.config.Libs)
	for _, want := range []mount.Mount{
		bind("/run/gfaas/model/blue", "/opt/gfaas/model", bindReadOnly), bind("/lib/libgfaas-model.so", "/opt/gfaas/modellib/libgfaas-model.so", bindReadOnly),
		bind("/lib/python", "/opt/gfaas/modellib/python", bindReadOnly),
	} {
		if !slices.Contains(in.mounts, want) {
			t.Errorf("no %+v in %+v", want, in.mounts)
		}
	}
	own, whole, err := in.Environ(instance.Spec{ID: "a", Slice: gpu.Slice{SMPct: 50}}, []string{"LD_LIBRARY_PATH=/theirs", "PYTHONPATH=/mine"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"GFAAS_MODEL_SOCKET=/opt/gfaas/model/model.sock", "LD_LIBRARY_PATH=/opt/gfaas/sim:/theirs:/opt/gfaas/modellib",
		"PYTHONPATH=/mine:/opt/gfaas/modellib/python",
	} {
		name, value, _ := strings.Cut(want, "=")
		if !slices.Contains(own, want) || whole[name] != value {
			t.Errorf("%s is not in %v", want, own)
		}
	}
}
