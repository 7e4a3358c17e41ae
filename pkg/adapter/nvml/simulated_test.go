package nvml

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const build = "../../../build"

// startProgram starts a program on the simulated GPU and reads its first line.
func startProgram(t *testing.T, args ...string) (pid int, line string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(build, "check/several"), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"))
	if _, err := cmd.StdinPipe(); err != nil { // the program exits when the pipe is closed
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, strings.TrimSpace(line)
}

// inChild runs the test again in a child process with the given environment. It returns true in that child.
func inChild(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv("NVML_CHILD") == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), "NVML_CHILD="+t.Name(), "GFAAS_SIM_DIR="+t.TempDir()), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("test in another process: %v, want it to pass:\n%s", err, out)
	}
	return false
}

func simulated(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(build, "lib/sim", Library))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("library of the simulated NVML: %v: run make first", err)
	}
	return path
}

// TestSimulated reads the processes on the simulated GPU through the library.
func TestSimulated(t *testing.T) {
	path := simulated(t)
	if !inChild(t, "GFAAS_SIM_GPU=mem=256MiB,count=2,context=0") {
		return
	}
	want := []Device{
		{Index: 0, Name: "gfaas simulated GPU", UUID: "GPU-67666161-732d-7369-6d75-6c6174656400", Mem: 256 * gpu.MiB, Driver: "580.0-simulated"},
		{Index: 1, Name: "gfaas simulated GPU", UUID: "GPU-67666161-732d-7369-6d75-6c6174656401", Mem: 256 * gpu.MiB, Driver: "580.0-simulated"},
	}
	n := NVML{Simulated: path}
	if got, err := n.Devices(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Fatalf("devices: got %+v, %v; want %v", got, err, want)
	}
	d := gpu.Device{Simulated: true}
	p := Processes{Simulated: path}
	defer p.Close()
	if got, err := p.Memory(d); err != nil || len(got) != 0 {
		t.Errorf("memory of the processes on an idle GPU: got %v, %v; want none", got, err)
	}
	idle, err := n.NewMeter(d)
	if err != nil {
		t.Fatal(err)
	}
	idle.Sample()
	if got := idle.Close(); got != (Figures{PowerW: 50}) {
		t.Errorf("figures of an idle GPU: got %+v, want 50 W and nothing else", got)
	}
	pid, line := startProgram(t, "hold", "67108864")
	if got, err := p.Memory(d); line != "held" || err != nil || len(got) != 1 || got[pid] != 64*gpu.MiB {
		t.Errorf("%s: %v, %v, want 64 MiB of process %d", line, got, err, pid)
	}
	startProgram(t, "burn")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		m, err := n.NewMeter(d)
		if err != nil {
			t.Fatal(err)
		}
		m.Sample()
		f := m.Close()
		if f.PowerW < 50 || f.PowerW > 300 || f.UtilPct > 100 || f.OccupancyPct != 0 {
			t.Fatalf("figures of a busy GPU: got %+v, want PowerW 50 to 300, UtilPct at most 100, OccupancyPct 0", f)
		}
		if busy, err := p.Busy(d); err != nil || busy < 0 || busy > 1 {
			t.Fatalf("utilization of a busy GPU: got %v, %v; want 0 to 1", busy, err)
		} else if busy > 0.5 && f.UtilPct > 50 && f.PowerW > 50 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("figures of a busy GPU after 30s: got %+v, want a utilization and a power above 50", f)
		}
	}
	if got, err := p.Memory(d); err != nil || len(got) != 2 {
		t.Errorf("processes on the GPU: got %v, %v; want two", got, err)
	}
	if got, err := p.Memory(gpu.Device{Simulated: true, Index: 1}); err != nil || len(got) != 0 {
		t.Errorf("processes on the other GPU: got %v, %v; want none", got, err)
	}
}

// TestSimulatedHandles finds the devices by all identifiers. Unknown devices are errors.
func TestSimulatedHandles(t *testing.T) {
	path := simulated(t)
	if !inChild(t, "GFAAS_SIM_GPU=count=2,context=0") {
		return
	}
	api := nvml.New(nvml.WithLibraryPath(path))
	if ret := api.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	defer api.Shutdown()
	byIndex, ret := api.DeviceGetHandleByIndex(1)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	uuid, _ := byIndex.GetUUID()
	pci, ret := byIndex.GetPciInfo()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for _, find := range []func() (nvml.Device, nvml.Return){
		func() (nvml.Device, nvml.Return) { return api.DeviceGetHandleByUUID(uuid) },
		func() (nvml.Device, nvml.Return) { return api.DeviceGetHandleByPciBusId("0000:01:01.0") },
		func() (nvml.Device, nvml.Return) {
			var id []byte
			for _, c := range pci.BusId {
				if c != 0 {
					id = append(id, byte(c))
				}
			}
			return api.DeviceGetHandleByPciBusId(string(id))
		},
	} {
		d, ret := find()
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		if index, ret := d.GetIndex(); ret != nvml.SUCCESS || index != 1 {
			t.Errorf("index of the device: got %d, %v; want 1", index, ret)
		}
	}
	if _, ret := api.DeviceGetHandleByIndex(2); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a third device: %v, want %v", ret, nvml.ERROR_INVALID_ARGUMENT)
	}
	if _, ret := api.DeviceGetHandleByUUID("GPU-1"); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("another UUID: %v, want %v", ret, nvml.ERROR_NOT_FOUND)
	}
	if v, ret := byIndex.GetMemoryInfo_v2(); ret != nvml.SUCCESS || v.Total != 16<<30 || v.Free != v.Total {
		t.Errorf("memory: got %+v, %v; want 16 GiB, all free", v, ret)
	}
	if c, ret := byIndex.GetClockInfo(nvml.CLOCK_SM); ret != nvml.SUCCESS || c != 1410 {
		t.Errorf("SM clock: got %d, %v; want 1410", c, ret)
	}
	if v, ret := byIndex.GetTemperature(nvml.TEMPERATURE_GPU); ret != nvml.SUCCESS || v != 40 {
		t.Errorf("temperature: got %d, %v; want 40", v, ret)
	}
	if mode, _, ret := byIndex.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_DISABLE {
		t.Errorf("MIG mode: got %d, %v; want it disabled", mode, ret)
	}
	if v, ret := api.SystemGetCudaDriverVersion(); ret != nvml.SUCCESS || v < 12000 {
		t.Errorf("CUDA version: got %d, %v; want at least 12000", v, ret)
	}
	if _, _, ret := byIndex.GetEccMode(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("ECC: %v, want %v", ret, nvml.ERROR_NOT_SUPPORTED)
	}
	if got := api.ErrorString(nvml.ERROR_NOT_SUPPORTED); got != "not supported" {
		t.Errorf("ErrorString of NOT_SUPPORTED: got %q, want \"not supported\"", got)
	}
}

// TestSimulatedIsNotMistakenForReal checks that a simulated library in place of the driver's is rejected, and
// that one process cannot use both libraries.
func TestSimulatedIsNotMistakenForReal(t *testing.T) {
	path := simulated(t)
	if !inChild(t, "LD_LIBRARY_PATH="+filepath.Dir(path)) {
		return
	}
	if _, err := (NVML{}).Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "finds the simulated") {
		t.Errorf("real NVML in a process with the simulated one: got the error %v, want one that names it", err)
	}
	if _, err := (NVML{Simulated: path}).Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "already loaded the other library") {
		t.Errorf("simulated NVML after the real one: got the error %v, want one about the loaded library", err)
	}
}

// TestSimulatedExports checks that the library exports exactly the functions in the list, which contains all functions
// that go-nvml's header declares.
func TestSimulatedExports(t *testing.T) {
	text, err := os.ReadFile("../../../hook/nvml.def")
	if err != nil {
		t.Fatal(err)
	}
	listed := []string{"nvmlErrorString"}
	for _, m := range regexp.MustCompile(`(?m)^NV(?:_VALUE|_NAME)?\((\w+)`).FindAllSubmatch(text, -1) {
		listed = append(listed, string(m[1]))
	}
	out, err := exec.Command("nm", "-D", "--defined-only", simulated(t)).Output()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for line := range strings.Lines(string(out)) {
		exported = append(exported, strings.Fields(line)[2])
	}
	slices.Sort(listed)
	slices.Sort(exported)
	if !slices.Equal(listed, exported) {
		t.Errorf("exported functions: got %d, want the %d that are listed", len(exported), len(listed))
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/nvml/nvml.h"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`DECLDIR (nvml\w+)\(`).FindAllSubmatch(header, -1)
	if len(declared) < 350 {
		t.Fatalf("%d functions understood, want at least 350", len(declared))
	}
	for _, m := range declared {
		if !slices.Contains(exported, string(m[1])) {
			t.Errorf("exported functions: got no %s, want it", m[1])
		}
	}
}
