package hooktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// readNVML waits until a program has printed a line, and parses the line of check/nvml.
func (h *host) readNVML(p *program) (total, used, free gpu.Bytes, pids []int) {
	h.t.Helper()
	h.eventually("the program prints what NVML reports", func() bool {
		if p.exited() {
			h.t.Fatalf("the program ended before it printed a line: %s%s", p.out.String(), p.errout.String())
		}
		return strings.Contains(p.out.String(), "\n")
	})
	line := p.out.String()
	var v2 string
	if _, err := fmt.Sscanf(line, "total %d used %d free %d v2 %s processes", &total, &used, &free, &v2); err != nil || v2 != "ok" {
		h.t.Fatalf("parse the line %q of check/nvml: %v", line, err)
	}
	_, list, _ := strings.Cut(strings.TrimSpace(line), "processes")
	for word := range strings.FieldsSeq(list) {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err != nil {
			h.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return total, used, free, pids
}

// python reads NVML through ctypes, as its own bindings do.
const python = `import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Memory(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
device, memory, count, list = ctypes.c_void_p(), Memory(), ctypes.c_uint(64), (Process * 64)()
for r in (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
          nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)),
          nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), list)):
    assert r == 0, r
print("total", memory.total, "used", memory.used, "free", memory.free, "v2 ok processes", *[p.pid for p in list[:count.value]], flush=True)
sys.stdin.read()
`

// TestNVMLInSlice checks that a program that reads NVML in a slice sees only the slice
// and its processes, and with GFAAS_NO_NVML the whole machine.
func TestNVMLInSlice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=mem=1GiB,context=0"}
	h.start()
	mine, others, free := h.limited("mine", 256*gpu.MiB), h.limited("others", 512*gpu.MiB), h.limited("free", 0)
	other := h.run(others, "check/nvml", "handle", fmt.Sprint(int64(300*gpu.MiB)))
	if total, used, _, pids := h.readNVML(other); total != 512*gpu.MiB || used != 300*gpu.MiB || len(pids) != 1 {
		t.Errorf("other instance: got %v of %v used by %v, want 300 MiB of 512 MiB by one process", used, total, pids)
	}
	first := h.run(mine, "check/nvml", "handle", fmt.Sprint(int64(64*gpu.MiB)))
	if total, used, remaining, pids := h.readNVML(first); total != 256*gpu.MiB || used != 64*gpu.MiB || remaining != 192*gpu.MiB ||
		!slices.Equal(pids, []int{first.cmd.Process.Pid}) {
		t.Errorf("first process: got %v of %v used, %v free, by %v; want 64 MiB of 256 MiB by itself", used, total, remaining, pids)
	}
	second := h.run(mine, "check/nvml", "default", fmt.Sprint(int64(16*gpu.MiB)))
	both := []int{first.cmd.Process.Pid, second.cmd.Process.Pid}
	slices.Sort(both)
	if total, used, remaining, pids := h.readNVML(second); total != 256*gpu.MiB || used != 80*gpu.MiB || remaining != 176*gpu.MiB || !slices.Equal(pids, both) {
		t.Errorf("second process: got %v of %v used, %v free, by %v; want 80 MiB of 256 MiB by %v", used, total, remaining, pids, both)
	}
	reader := h.launch(exec.Command("python3", "-c", python), mine)
	if total, used, remaining, pids := h.readNVML(reader); total != 256*gpu.MiB || used != 80*gpu.MiB || remaining != 176*gpu.MiB || !slices.Equal(pids, both) {
		t.Errorf("reader in Python: got %v of %v used, %v free, by %v; want 80 MiB of 256 MiB by %v", used, total, remaining, pids, both)
	}
	unlimited := h.launch(exec.Command("python3", "-c", python), free)
	if total, used, remaining, pids := h.readNVML(unlimited); total != gpu.GiB || used != 0 || remaining != gpu.GiB-380*gpu.MiB || len(pids) != 0 {
		t.Errorf("instance without a limit: got %v of %v used, %v free, by %v; want 0 of 1 GiB, with 380 MiB of it not free, by none", used, total, remaining, pids)
	}
	unfiltered := h.launch(exec.Command("python3", "-c", python), append(slices.Clone(mine), "GFAAS_NO_NVML=1"))
	if total, used, remaining, pids := h.readNVML(unfiltered); total != gpu.GiB || used != 380*gpu.MiB || remaining != total-used || len(pids) != 3 {
		t.Errorf("reader with GFAAS_NO_NVML: got %v of %v used, %v free, by %v; want 380 MiB of 1 GiB by three processes", used, total, remaining, pids)
	}
	// A reader of NVML is no client, and is forgotten.
	h.eventually("the daemon has forgotten the readers of NVML", func() bool { return len(h.rows()) == 3 })
}

// summing is python, and prints the used memory and the sum over the listed processes.
var summing = strings.Replace(python, `print("total"`, `print("used", memory.used, "listed", sum(p.used for p in list[:count.value]), "free", memory.free, flush=True)
print("total"`, 1)

// TestNVMLUsedIsListed checks that the used memory is the sum over the listed
// processes, also with contexts, whether they count or not, and below a limit that was
// lowered.
func TestNVMLUsedIsListed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		counted        bool // contexts count
		context        gpu.Bytes
		limit, lowered gpu.Bytes
		used, free     gpu.Bytes
	}{
		{"no contexts", true, 0, 256 * gpu.MiB, 256 * gpu.MiB, 128 * gpu.MiB, 128 * gpu.MiB},
		{"contexts", true, 32 * gpu.MiB, 256 * gpu.MiB, 256 * gpu.MiB, 192 * gpu.MiB, 64 * gpu.MiB},
		{"contexts that do not count", false, 32 * gpu.MiB, 256 * gpu.MiB, 256 * gpu.MiB, 128 * gpu.MiB, 128 * gpu.MiB},
		{"lowered", true, 0, 256 * gpu.MiB, 96 * gpu.MiB, 128 * gpu.MiB, 0},
		{"lowered, with contexts", true, 32 * gpu.MiB, 256 * gpu.MiB, 96 * gpu.MiB, 192 * gpu.MiB, 0},
		{"lowered, with contexts that do not count", false, 32 * gpu.MiB, 256 * gpu.MiB, 96 * gpu.MiB, 128 * gpu.MiB, 0},
		{"lowered to what is used", true, 0, 256 * gpu.MiB, 128 * gpu.MiB, 128 * gpu.MiB, 0},
		{"no limit", true, 32 * gpu.MiB, 0, 0, 192 * gpu.MiB, 832 * gpu.MiB},
		{"no limit, contexts that do not count", false, 32 * gpu.MiB, 0, 0, 128 * gpu.MiB, 832 * gpu.MiB},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			if tt.counted {
				h.flags = []string{"--count-context"}
			}
			h.settings = []string{
				fmt.Sprintf("GFAAS_SIM_GPU=mem=1GiB,context=%d", int64(tt.context)), "GFAAS_SIM_DIR=" + filepath.Join(h.runDir, "sim"),
			}
			h.start()
			env := h.limited("mine", tt.limit)
			for range 2 {
				p := h.run(env, "check/nvml", "handle", fmt.Sprint(int64(64*gpu.MiB)))
				h.eventually("the process has its memory", func() bool { return strings.Contains(p.out.String(), "processes") })
			}
			if err := h.client.Change(t.Context(), "mine", wire.Change{MemLimit: &tt.lowered}); err != nil {
				t.Fatal(err)
			}
			want, line := fmt.Sprintf("used %d listed %d free %d", tt.used, tt.used, tt.free), ""
			h.eventually("NVML in the slice reports "+want, func() bool {
				reader := h.launch(exec.Command("python3", "-c", summing), env)
				h.eventually("the program prints what NVML reports", func() bool { return strings.Count(reader.out.String(), "\n") == 2 }) // Python may write a line in pieces
				line, _, _ = strings.Cut(reader.out.String(), "\n")
				return line == want || tt.context == 0 || !tt.counted
			})
			if line != want {
				t.Errorf("NVML in the slice: got %q, want %q", line, want)
			}
		})
	}
}

// TestNVMLListsWhatCounts checks that every process that counts is listed, with the
// memory that counts, whatever NVML reports for it.
func TestNVMLListsWhatCounts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=mem=1GiB,context=32MiB"}
	h.start()
	env := h.limited("mine", 256*gpu.MiB)
	checkReader := func(want string, pids ...int) {
		t.Helper()
		reader := h.launch(exec.Command("python3", "-c", summing), env)
		h.eventually("the program prints what NVML reports", func() bool { return strings.Count(reader.out.String(), "\n") == 2 }) // Python may write a line in pieces
		var wanted []string
		for _, pid := range pids {
			wanted = append(wanted, fmt.Sprint(pid))
		}
		slices.Sort(wanted)
		want += " " + strings.Join(wanted, " ")
		sums, list, _ := strings.Cut(reader.out.String(), "\n")
		_, list, _ = strings.Cut(strings.TrimSpace(list), "processes")
		listed := strings.Fields(list)
		slices.Sort(listed)
		if got := sums + " " + strings.Join(listed, " "); strings.TrimSpace(got) != want {
			t.Errorf("NVML in the slice: got %q, want %q", got, want)
		}
	}
	// A process with a context but no other memory is not connected yet.
	idle := h.run(env, "check/nvml", "handle", "0")
	h.eventually("the process has a context", func() bool { return strings.Contains(idle.out.String(), "processes") })
	checkReader("used 0 listed 0 free 268435456", idle.cmd.Process.Pid)
	// NVML does not list this process, which has no context.
	other, err := tokentest.Dial(filepath.Join(tokend.ClientSocketDir(h.runDir), "token.sock"), "mine", value(env, "GFAAS_SECRET"), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	checkReader("used 67108864 listed 67108864 free 201326592", idle.cmd.Process.Pid, os.Getpid())
}

// TestNVMLSpelling checks that a GPU is found in the slice however the slice's list
// spells it.
func TestNVMLSpelling(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=mem=1GiB,context=0,count=2"}
	h.start()
	env := slices.DeleteFunc(h.limited("mine", 256*gpu.MiB), func(v string) bool { return strings.HasPrefix(v, "GFAAS_DEVICES=") })
	for given, want := range map[string]gpu.Bytes{
		"0": 256 * gpu.MiB, "00": 256 * gpu.MiB, " 0": 256 * gpu.MiB, gpuUUID(0): 256 * gpu.MiB, strings.ToUpper(gpuUUID(0)): 256 * gpu.MiB,
		"1": gpu.GiB, gpuUUID(1): gpu.GiB,
	} {
		p := h.launch(exec.Command("python3", "-c", python), append(slices.Clone(env), "GFAAS_DEVICES="+given))
		if total, _, _, _ := h.readNVML(p); total != want {
			t.Errorf("GFAAS_DEVICES=%s: %v in all, want %v", given, total, want)
		}
	}
}

// pmon prints, twice a second, the utilization of each active process.
const pmon = `import ctypes, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("at", ctypes.c_ulonglong)] + [(n, ctypes.c_uint) for n in ("sm", "mem", "enc", "dec")]
class Info(ctypes.Structure):
    _fields_ = [("at", ctypes.c_ulonglong)] + [(n, ctypes.c_uint) for n in ("pid", "sm", "mem", "enc", "dec", "jpg", "ofa")]
class Infos(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint), ("seen", ctypes.c_ulonglong), ("list", ctypes.POINTER(Info))]
OK, NOT_SUPPORTED, NOT_FOUND, TOO_FEW = 0, 3, 6, 7
device, count, seen, array = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_ulonglong(), (Info * 64)()
assert nvml.nvmlInit_v2() == OK and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == OK
assert nvml.nvmlDeviceGetAccountingPids(device, ctypes.byref(count), None) == NOT_SUPPORTED
while True:
    time.sleep(0.5)
    r = nvml.nvmlDeviceGetProcessUtilization(device, None, ctypes.byref(count), seen)
    assert r in (TOO_FEW, NOT_FOUND), r
    samples = (Sample * (count.value + 8))()
    count.value = len(samples)
    r = nvml.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(count), seen)
    assert r == OK and count.value or r == NOT_FOUND, r
    few = samples[:count.value if r == OK else 0]
    all = Infos(ctypes.sizeof(Infos) | 1 << 24, 64, 0, array)
    r = nvml.nvmlDeviceGetProcessesUtilizationInfo(device, ctypes.byref(all))
    assert r == OK and all.count or r == NOT_FOUND, r
    if few and [p.pid for p in few] == [p.pid for p in array[:all.count if r == OK else 0]]:
        print(*["%d:%d" % (s.pid, s.sm) for s in few], flush=True)
`

// TestNVMLUtilizationInSlice checks that a program in a slice sees the utilization of
// the slice's own processes only.
func TestNVMLUtilizationInSlice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	slice := whole
	slice.QuotaRequest, slice.QuotaLimit = 0.3, 0.3
	env := h.register("small", slice)
	small, _ := h.pace(env, "5000")
	slice.QuotaRequest, slice.QuotaLimit = 0.7, 0.7
	large, _ := h.pace(h.register("large", slice), "5000")
	// utilization returns the latest utilization that a reader has printed, in percent by
	// process.
	utilization := func(reader *program) map[int]int {
		t.Helper()
		if reader.exited() {
			t.Fatalf("the reader of NVML ended, want it to run: %s", reader.errout.String())
		}
		of, lines := map[int]int{}, strings.Split(reader.out.String(), "\n")
		for word := range strings.FieldsSeq(lines[max(0, len(lines)-2)]) {
			var pid, percent int
			if _, err := fmt.Sscanf(word, "%d:%d", &pid, &percent); err != nil {
				t.Fatal(err)
			}
			of[pid] = percent
		}
		return of
	}
	inside, own := h.launch(exec.Command("python3", "-c", pmon), env), small.cmd.Process.Pid
	h.eventually("a reader in the slice sees its process with 15 to 45 percent", func() bool {
		of := utilization(inside)
		if _, known := of[own]; len(of) > 1 || len(of) == 1 && !known {
			t.Fatalf("utilization in the slice of process %d: got %v, want only that process", own, of)
		}
		return of[own] > 15 && of[own] < 45
	})
	unfiltered := h.launch(exec.Command("python3", "-c", pmon), append(slices.Clone(env), "GFAAS_NO_NVML=1"))
	h.eventually("a reader with GFAAS_NO_NVML sees both processes", func() bool {
		of := utilization(unfiltered)
		return len(of) == 2 && of[own] > 15 && of[large.cmd.Process.Pid] > of[own]
	})
}
