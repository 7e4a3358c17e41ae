package devices

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// exitStatus returns the exit status of an error.
func exitStatus(err error) int {
	var e *cli.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Exit
	}
	return cli.ExitFailure
}

// setVisible sets CUDA_VISIBLE_DEVICES for a test. The value "unset" unsets it.
func setVisible(t *testing.T, value string) {
	t.Helper()
	t.Setenv(Variable, value)
	if value == "unset" {
		if err := os.Unsetenv(Variable); err != nil {
			t.Fatal(err)
		}
	}
}

// joinNames returns the names of devices, separated by commas.
func joinNames(devices []gpu.Device) string {
	var names []string
	for _, d := range devices {
		names = append(names, d.String())
	}
	return strings.Join(names, ",")
}

// TestMatchUUID checks that a UUID or a unique prefix of one, in any case, selects a GPU, and the exit status
// for an ambiguous or unknown prefix.
func TestMatchUUID(t *testing.T) {
	all := []identity{
		{"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", gpu.Device{Index: 0}},
		{"GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6", gpu.Device{Index: 1}},
		{"GPU-11111111-d72c-4106-c12f-20bd9faed9f6", gpu.Device{Index: 2}},
		{simgpu.UUID(0), gpu.Device{Simulated: true}},
	}
	for name, want := range map[string]string{
		"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6": "0", "GPU-8932a": "1", "GPU-1": "2", "gpu-8932AAAA": "1", "GPU-67": "sim",
	} {
		if d, err := matchUUID("--gpu", name, all); err != nil || d.String() != want {
			t.Errorf("%s: got GPU %v, %v; want %s", name, d, err, want)
		}
	}
	for name, want := range map[string]int{
		"GPU-8932": cli.ExitUsage, "GPU-2": cli.ExitUnavailable, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f60": cli.ExitUnavailable,
	} {
		if _, err := matchUUID("--gpu", name, all); exitStatus(err) != want || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, exit %d; want the name and exit %d", name, err, exitStatus(err), want)
		}
	}
}

// TestSimulatedUUIDs compares the UUIDs of package simgpu with those of the simulated NVML.
func TestSimulatedUUIDs(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_LIB_DIR", "../../../build/lib")
	path := SimulatedNVML()
	t.Setenv("GFAAS_SIM_GPU", "count=3")
	shown, err := nvml.NVML{Simulated: path}.Devices(context.Background())
	if err != nil || len(shown) != 3 {
		t.Fatalf("got GPUs %v, %v; want 3 GPUs", shown, err)
	}
	for _, d := range shown {
		if got := simgpu.UUID(d.Index); got != d.UUID {
			t.Errorf("UUID of GPU %d: got %s, want %s", d.Index, got, d.UUID)
		}
	}
}

// TestChoose chooses GPUs with --gpu and CUDA_VISIBLE_DEVICES on a host with three simulated GPUs.
func TestChoose(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_SIM_GPU", "count=3")
	last := simgpu.UUID(2)
	for _, c := range []struct {
		flag, visible string
		want          string // names of the GPUs; empty if neither the flag nor the variable selects any
		exit          int
		message       string // part of the error
	}{
		{"", "unset", "", 0, ""},
		{"sim", "unset", "sim", 0, ""},
		{"sim:01", "unset", "sim:1", 0, ""},
		{"sim:2, sim", "unset", "sim:2,sim", 0, ""},
		{last, "unset", "sim:2", 0, ""},
		{strings.ToUpper(last), "unset", "sim:2", 0, ""},
		{last + ",sim", "unset", "sim:2,sim", 0, ""},
		{"GPU-6766", "unset", "", cli.ExitUsage, "the UUIDs of 3 GPUs begin with GPU-6766"},
		{"GPU-7", "unset", "", cli.ExitUnavailable, "--gpu: GPU GPU-7 cannot be used"},
		{last + ",sim:2", "unset", "", cli.ExitUsage, ": sim:2 is given twice"},
		{"sim:1,sim:01", "unset", "", cli.ExitUsage, ": sim:1 is given twice"},
		{"sim:3", "unset", "", cli.ExitUnavailable, "this machine has 3 GPU(s)"},
		{"0", "unset", "", cli.ExitUnavailable, "no NVIDIA driver found"},
		{"x", "unset", "", cli.ExitUsage, "--gpu"},

		{"", "1", "sim:1", 0, ""},
		{"", "01", "sim:1", 0, ""},
		{"", " 1 ", "sim:1", 0, ""},
		{"", last, "sim:2", 0, ""},
		{"", "2,0", "sim:2,sim", 0, ""},
		{"", last + " , 01", "sim:2,sim:1", 0, ""},
		{"", "0,2,-1,1", "sim,sim:2", 0, ""},
		{"", "", "", cli.ExitUnavailable, "CUDA_VISIBLE_DEVICES= hides all GPUs"},
		{"", "-1", "", cli.ExitUnavailable, "CUDA_VISIBLE_DEVICES=-1 hides all GPUs"},
		{"", "NoDevFiles", "", cli.ExitUnavailable, "CUDA_VISIBLE_DEVICES=NoDevFiles hides all GPUs"},
		{"", "3", "", cli.ExitUnavailable, "this machine has 3 GPU(s)"},
		{"", "1,3", "", cli.ExitUnavailable, "this machine has 3 GPU(s)"},
		{"", "x", "", cli.ExitUsage, "CUDA_VISIBLE_DEVICES=x"},
		{"", "1,", "", cli.ExitUsage, "CUDA_VISIBLE_DEVICES=1,"},
		{"", "1,1", "", cli.ExitUsage, ": sim:1 is given twice"},
		{"", "GPU-6766", "", cli.ExitUsage, "the UUIDs of 3 GPUs begin with GPU-6766"},
		{"", "MIG-12345678-1234-1234-1234-123456789abc", "", cli.ExitUnavailable, "no NVIDIA driver found"},

		// If both are set, the flag must select GPUs that the variable lists.
		{"sim:1", "1", "sim:1", 0, ""},
		{last, "02", "sim:2", 0, ""},
		{"sim:1", "2,1", "sim:1", 0, ""},
		{"sim", "1", "", cli.ExitUsage, "--gpu names GPU sim, which CUDA_VISIBLE_DEVICES=1 hides"},
		{"sim,sim:1", "1", "", cli.ExitUsage, "--gpu names GPU sim, which"},
		{"sim:1", last, "", cli.ExitUsage, "--gpu names GPU sim:1, which"},
		{"sim", "", "", cli.ExitUsage, "--gpu names GPU sim, which CUDA_VISIBLE_DEVICES= hides"},
		{"sim", "-1", "", cli.ExitUsage, "hides"},
	} {
		setVisible(t, c.visible)
		got, err := Choose(c.flag)
		if exitStatus(err) != c.exit || err == nil && joinNames(got) != c.want || err != nil && !strings.Contains(err.Error(), c.message) {
			t.Errorf("--gpu %q, %s=%q: got GPUs %q, exit %d, %v; want %q, exit %d, %q",
				c.flag, Variable, c.visible, joinNames(got), exitStatus(err), err, c.want, c.exit, c.message)
		}
	}
}

// TestChooseInSlice chooses GPU 2 in a slice of GPU 1. CUDA_VISIBLE_DEVICES has no effect while it has the
// value that gfaas has set for the slice (GFAAS_DEVICES). A program may change it, and then it limits the choice.
func TestChooseInSlice(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_SIM_GPU", "count=3")
	t.Setenv("GFAAS_DEVICES", "1")
	for visible, want := range map[string]string{"1": "sim:2", "2": "sim:2", "0": "error"} {
		setVisible(t, visible)
		d, err := ChooseOne("sim:2")
		if got := d.String(); (err != nil) != (want == "error") || err == nil && got != want {
			t.Errorf("%s=%s: got %v, %v; want %s", Variable, visible, d, err, want)
		}
	}
}

// TestChooseOne checks which GPU a command with one GPU uses, and the error if several are named.
func TestChooseOne(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_SIM_GPU", "count=3")
	for _, c := range []struct{ flag, visible, want, message string }{
		{"", "unset", "sim", ""}, {"", "1", "sim:1", ""}, {"sim:2", "1,2", "sim:2", ""},
		{"", "1,2", "", "CUDA_VISIBLE_DEVICES=1,2 names 2 GPUs: expected one"}, {"sim:1,sim:2", "unset", "", "expected one GPU"},
	} {
		setVisible(t, c.visible)
		d, err := ChooseOne(c.flag)
		if c.message == "" && (err != nil || d.String() != c.want) || c.message != "" && (exitStatus(err) != cli.ExitUsage || !strings.Contains(err.Error(), c.message)) {
			t.Errorf("--gpu %q, %s=%q: got %v, %v; want %q, error %q", c.flag, Variable, c.visible, d, err, c.want, c.message)
		}
	}
}

// TestListVisible checks that the name "sim" alone stands for all simulated GPUs that CUDA_VISIBLE_DEVICES lists.
func TestListVisible(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_SIM_GPU", "count=3,mem=1GiB")
	for _, c := range []struct {
		list, visible, want string
		exit                int
	}{
		{"", "unset", "sim,sim:1,sim:2", 0}, {"sim", "unset", "sim,sim:1,sim:2", 0}, {"sim:2,sim", "unset", "sim:2,sim", 0},
		{"", "2,1", "sim:2,sim:1", 0}, {"sim", "2", "sim:2", 0}, {"sim:2", "02", "sim:2", 0},
		{"sim:1,sim", "1", "", cli.ExitUsage}, {"sim", "", "", cli.ExitUnavailable}, {"", "-1", "", cli.ExitUnavailable},
		{"sim:1,sim:1", "unset", "", cli.ExitUsage}, {simgpu.UUID(1), "unset", "sim:1", 0},
	} {
		setVisible(t, c.visible)
		found, err := List(context.Background(), c.list)
		var names []string
		for _, g := range found {
			names = append(names, g.Name)
			if g.Mem != gpu.GiB {
				t.Errorf("memory of %s: got %v, want %v", g.Name, g.Mem, gpu.GiB)
			}
		}
		if got := strings.Join(names, ","); got != c.want || exitStatus(err) != c.exit {
			t.Errorf("list %q, %s=%q: got %s, exit %d, %v; want %s, exit %d", c.list, Variable, c.visible, got, exitStatus(err), err, c.want, c.exit)
		}
	}
}

// TestPermitted checks that a plan may name only GPUs that CUDA_VISIBLE_DEVICES lists, and all GPUs if it is unset.
func TestPermitted(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_SIM_GPU", "count=3")
	for _, c := range []struct {
		visible string
		names   []string
		ok      bool
	}{
		{"unset", []string{"sim", "sim:1"}, true}, {"0,1", []string{"sim", "sim:01"}, true}, {"1", []string{"sim:1", "sim"}, false},
		{"", []string{"sim"}, false}, {"", nil, true}, {"1", []string{"0"}, false},
	} {
		setVisible(t, c.visible)
		if err := Permitted("the plan places instances on", c.names); (err == nil) != c.ok {
			t.Errorf("%s=%q, GPUs %v: got error %v, want permitted: %v", Variable, c.visible, c.names, err, c.ok)
		}
	}
}
