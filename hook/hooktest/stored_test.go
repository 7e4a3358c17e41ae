package hooktest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// storer is a Python program that executes one command for each line of its input:
//
//	store NAME MIB  open a connection to gfaas-modeld and store a model of MIB
//	commit NAME     commit the model
//	drop NAME       close the model's connection, which ends an uncommitted store
//	alloc MIB       allocate GPU memory
//	free            free the memory that was allocated last
//	sees            print the GPU memory in use as the process sees it, in MiB: used according to
//	                NVML; the sum over the processes that NVML lists; and "taken", the total minus
//	                the free memory of cuMemGetInfo
//
// All commands except sees print ok or, if they fail, the error code of gfaas-modeld or of the driver
// (free: failed).
const storer = `import array, ctypes, json, os, socket, sys
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(os.environ["GFAAS_RUN_DIR"] + "/model-a.sock")
    return s
def ask(s, request, *fds):
    s.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
    data, rights, _, _ = s.recvmsg(65536, 1024)
    for r in rights:
        got = array.array("i", r[2])
        for fd in got: os.close(fd)
    answer = json.loads(data)
    return "ok" if answer.get("ok") else answer["error"]["code"]
class Memory(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
def sees():
    global nvml
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, memory, count, list, free, total = ctypes.c_void_p(), Memory(), ctypes.c_uint(64), (Process * 64)(), ctypes.c_size_t(), ctypes.c_size_t()
    for r in (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)), nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)),
              nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), list), cuda().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))):
        assert r == 0, r
    return "used %d listed %d taken %d" % tuple(n >> 20 for n in (memory.used, sum(p.used for p in list[:count.value]), total.value - free.value))
driver = None
def cuda():
    global driver
    if not driver:
        driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        for r in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), driver.cuCtxSetCurrent(context)):
            assert r == 0, r
    return driver
stores, held = {}, []
def do(op, *args):
    if op == "store":
        size, m = int(args[1]) << 20, os.memfd_create("manifest")
        os.write(m, b'{"tensors":{}}')
        s = stores[args[0]] = connect()
        answer = ask(s, {"op": "store", "name": args[0], "size": size}, m)
        os.close(m)
        return answer
    if op == "commit":
        return ask(stores[args[0]], {"op": "commit", "name": args[0]})
    if op == "drop":
        stores.pop(args[0]).close()
        return "ok"
    if op == "alloc":
        at = ctypes.c_uint64()
        r = cuda().cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(args[0]) << 20))
        if r == 0: held.append(at)
        return "ok" if r == 0 else str(r)
    if op == "free":
        return "ok" if cuda().cuMemFree_v2(held.pop()) == 0 else "failed"
    return sees()
for line in sys.stdin: print(do(*line.split()), flush=True)
`

// TestStoredInSlice checks that the uncommitted stores of a process in gfaas-modeld count against its
// slice's memory limit, together with its allocations, also after each of the daemons was restarted.
// A store may exceed the limit only if no token daemon runs when it is made.
func TestStoredInSlice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.settings = []string{"GFAAS_SIM_GPU=mem=1GiB,context=0", "GFAAS_SIM_DIR=" + filepath.Join(h.runDir, "sim"), "GFAAS_RUN_DIR=" + h.runDir, "GFAAS_STATE=" + filepath.Join(h.runDir, "state.db")}
	startModeld := func() *program {
		p := h.launch(exec.Command(filepath.Join(build, "bin/gfaas-modeld"), "--gpu", "sim", "--capacity", "512MiB", "--tenant", "a"), h.daemonEnv())
		h.eventually("gfaas-modeld serves", func() bool { h.alive(p, "modeld"); return strings.Contains(p.errout.String(), "serving") })
		return p
	}
	modeld := startModeld()
	h.start()
	env := h.limited("mine", 64*gpu.MiB)
	c := &talk{h: h, p: h.launch(exec.Command("python3", "-c", storer), env)}
	does := func(request, want string) {
		t.Helper()
		if _, err := fmt.Fprintln(c.p.in, request); err != nil {
			t.Fatal(err)
		}
		if got := c.next(); got != want {
			t.Errorf("answer to %q: got %q, want %q", request, got, want)
		}
	}
	eventually := func(request, want string) {
		t.Helper()
		got := ""
		defer func() {
			if got != want {
				t.Logf("last answer to %q: got %q, want %q", request, got, want)
			}
		}()
		h.eventually("the answer to "+request+" is "+want, func() bool {
			fmt.Fprintln(c.p.in, request)
			got = c.next()
			return got == want
		})
	}
	// Stores count before the process uses the driver, and afterwards.
	does("store one 100", "slice-memory")
	does("store one 20", "ok")
	does("store two 20", "ok")
	does("store three 32", "slice-memory")
	does("sees", "used 40 listed 40 taken 40")
	does("alloc 32", "2") // CUDA_ERROR_OUT_OF_MEMORY
	does("alloc 16", "ok")
	does("sees", "used 56 listed 56 taken 56")
	if row, known := h.row("mine"); !known || row.MemStoredMiB != 40 || row.MemUsedMiB != 16 {
		t.Errorf("status of the instance: got %+v (known: %t), want 40 MiB stored and 16 MiB used", row, known)
	}
	does("commit one", "ok")
	does("sees", "used 36 listed 36 taken 36")
	does("alloc 28", "ok")
	does("store four 2", "slice-memory")
	does("free", "ok")
	does("drop two", "ok")
	eventually("sees", "used 16 listed 16 taken 16")
	// A new token daemon counts the stores again.
	does("store five 40", "ok")
	h.kill()
	h.start()
	eventually("sees", "used 56 listed 56 taken 56")
	does("alloc 16", "2")
	does("store six 16", "slice-memory")
	// It also counts stores that were made while no token daemon ran, even beyond the limit.
	h.kill()
	does("store six 40", "ok")
	h.start()
	eventually("sees", "used 96 listed 96 taken 64")
	does("alloc 1", "2")
	// The stores end with the model daemon.
	modeld.kill()
	eventually("sees", "used 16 listed 16 taken 16")
	does("alloc 48", "ok")
	does("free", "ok")
	startModeld()
	does("store seven 48", "ok")
	// They also end with the process.
	c.p.kill()
	h.eventually("the daemon counts no stored memory of the instance mine", func() bool {
		for _, g := range h.status().GPUs {
			for _, row := range g.Clients {
				if row.Instance == "mine" && row.MemStoredMiB == 0 {
					return true
				}
			}
		}
		return false
	})
	// The limit does not apply to a process that is not in a slice.
	c = &talk{h: h, p: h.launch(exec.Command("python3", "-c", storer), h.daemonEnv())}
	does("store eight 400", "ok")
}
