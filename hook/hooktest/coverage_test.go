package hooktest

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// symbol is a row of hook/symbols.def.
type symbol struct {
	name    string
	since   int
	variant string // NONE, PTSZ or PTDS
	hook    string
	inSim   bool // and is simulated, not only exported
	stream  string
}

// exportedNames returns the row's exported names: its own and its per-thread twin's.
func (s symbol) exportedNames() []string {
	if s.variant == "NONE" {
		return []string{s.name}
	}
	return []string{s.name, s.name + "_" + strings.ToLower(s.variant)}
}

func (s symbol) wrapped() bool { return s.hook != "PASS" }

// streamless marks rows whose functions have no stream parameter.
const streamless = "0"

var (
	rowHead  = regexp.MustCompile(`(?m)^CU\d+\((\w+), (\d+), (NONE|PTSZ|PTDS), ([A-Z]+),\s+([A-Z]+)(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?, (\(.*?\)0\)|\w+)[,)]`)
	nameOnly = regexp.MustCompile(`(?m)^CU_NAME\((\w+), \d+\)$`)
	rowBegin = regexp.MustCompile(`(?m)^CU`)
	rowWork  = []string{"LAUNCH", "COPY", "SYNC"}
)

// symbols returns the rows of the list, and the names that are listed without a row.
func symbols(t *testing.T) (rows []symbol, names []string) {
	t.Helper()
	list, err := os.ReadFile("../symbols.def")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rowHead.FindAllStringSubmatch(string(list), -1) {
		since, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, symbol{m[1], since, m[3], m[4], m[5] != "STUB", m[6]})
	}
	for _, m := range nameOnly.FindAllStringSubmatch(string(list), -1) {
		names = append(names, m[1])
	}
	if n := len(rowBegin.FindAll(list, -1)); n != len(rows)+len(names) || n < 600 {
		t.Fatalf("rows of the list: parsed %d rows and %d names, want %d in total, and at least 600", len(rows), len(names), n)
	}
	return rows, names
}

// exports returns the functions that a shared library exports.
func exports(t *testing.T, path string) []string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range all {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			out = append(out, s.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// missing returns the names of a that b lacks.
func missing(a, b []string) []string {
	var out []string
	for _, name := range a {
		if !slices.Contains(b, name) {
			out = append(out, name)
		}
	}
	return out
}

// nvmlHand matches a row of NVML's list that the library answers for the slice.
var nvmlHand = regexp.MustCompile(`(?m)^NV\((\w+), \w+, HAND, `)

// TestExports compares the lists with the library's exports: a wrapper for every row
// that is not PASS and for its twin, dlsym, dlopen, the functions that start programs,
// and no others.
func TestExports(t *testing.T) {
	rows, names := symbols(t)
	known, want := slices.Clone(names), []string{
		"dlsym", "dlopen", "dlmopen", "execve", "execv", "execvp", "execvpe", "execl", "execle", "execlp", "fexecve", "execveat",
		"posix_spawn", "posix_spawnp", "pidfd_spawn", "pidfd_spawnp", "system", "popen",
	}
	for _, s := range rows {
		known = append(known, s.exportedNames()...)
		if s.wrapped() {
			want = append(want, s.exportedNames()...)
		}
	}
	list, err := os.ReadFile("../nvml.def")
	if err != nil {
		t.Fatal(err)
	}
	answered := nvmlHand.FindAllStringSubmatch(string(list), -1)
	if len(answered) < 10 {
		t.Errorf("%d functions of the management library understood, want at least 10", len(answered))
	}
	for _, m := range answered {
		want = append(want, m[1])
	}
	slices.Sort(known)
	for i, name := range known[1:] {
		if name == known[i] {
			t.Errorf("the list names %s twice, want once", name)
		}
	}
	got := exports(t, filepath.Join(build, "lib/libgfaas.so"))
	if lacks := missing(want, got); len(lacks) > 0 {
		t.Errorf("exports of the library: got none of %v, want them", lacks)
	}
	if more := missing(got, want); len(more) > 0 {
		t.Errorf("exports of the library: got %v, want only functions that the list wraps", more)
	}
	if more := missing(exports(t, filepath.Join(build, "lib/sim/libcuda.so.1")), known); len(more) > 0 {
		t.Errorf("exports of the simulated driver: got %v, want only functions of the list", more)
	}
}

// looksLikeWork matches names of functions that may send work to a GPU, allocate or
// free its memory, or change the work of a captured graph.
var looksLikeWork = regexp.MustCompile(`Launch|Memcpy|Memset|Prefetch|Discard|Decompress|MapArrayAsync|AttachMem|` +
	`GraphUpload|GraphInstantiate|BeginCapture|Async(_v\d)?(_ptsz)?$|` +
	`^cuMem(Alloc|Free|Create|Release)|ArrayCreate|ArrayDestroy|^cuArray3DCreate|PoolCreate|PoolDestroy|PoolTrim|` +
	`CtxCreate|CtxDestroy|PrimaryCtxRe(lease|set)|StreamCreate|StreamDestroy`)

// passedBy lists the functions that look like work and are not wrapped, with the
// reason. Read the function's documentation before you add one.
var passedBy = map[string]string{
	"cuMemAllocHost_v2": "host memory", "cuMemFreeHost": "host memory",

	"cuSignalExternalSemaphoresAsync": "another waits for it: held back, that would wait for the gate",

	"cuGraphAddMemcpyNode": "describes work that cuGraphLaunch does", "cuGraphMemcpyNodeGetParams": "a query",
	"cuGraphMemcpyNodeSetParams": "describes work that cuGraphLaunch does", "cuGraphExecMemcpyNodeSetParams": "does not change how many kernels it has",
	"cuGraphAddMemsetNode": "describes work that cuGraphLaunch does", "cuGraphMemsetNodeGetParams": "a query",
	"cuGraphMemsetNodeSetParams": "describes work that cuGraphLaunch does", "cuGraphExecMemsetNodeSetParams": "does not change how many kernels it has",

	"cuGreenCtxCreate": "holds a primary context; makes no other current",

	// Forms of CUDA 3.1 with 32-bit addresses, which a driver with unified addressing
	// cannot return.
	"cuMemAllocHost": "32-bit",

	"cuGLMapBufferObjectAsync":         "graphics memory; no data moves",
	"cuGLMapBufferObjectAsync_v2":      "graphics memory; no data moves",
	"cuGLMapBufferObjectAsync_v2_ptsz": "graphics memory; no data moves",
	"cuGLUnmapBufferObjectAsync":       "graphics memory; no data moves",
}

// twinless matches functions on a stream that have no per-thread twin, because they are
// older than per-thread streams.
var twinless = regexp.MustCompile(`^cuLaunchGridAsync$|^cuLaunchCooperativeKernelMultiDevice$|^cuStreamDestroy|^cuGLUnmap|^cuMem(cpy\w+Async)$`)

// TestClasses checks each row's class: every function that may be work is wrapped,
// unless passedBy gives a reason, and no twin was forgotten.
func TestClasses(t *testing.T) {
	rows, names := symbols(t)
	passes := slices.Clone(names)
	for _, s := range rows {
		if !slices.Contains([]string{"LAUNCH", "COPY", "SYNC", "WATCH", "WAIT", "SWITCH", "HAND", "PASS"}, s.hook) {
			t.Errorf("class of %s: got %s, want one of the known classes", s.name, s.hook)
		}
		if s.hook == "PASS" {
			passes = append(passes, s.name)
		}
		twin := s.variant != "NONE"
		if twin && s.stream == streamless && strings.HasSuffix(s.name, "Async") {
			t.Errorf("%s has a twin, want the position of its stream in the list", s.name)
		}
		if !twin && s.stream != streamless && !twinless.MatchString(s.name) {
			t.Errorf("%s takes a stream, want a twin in the list", s.name)
		}
		if !twin && slices.Contains(rowWork, s.hook) && s.since > 2000 && !twinless.MatchString(s.name) {
			t.Errorf("%s is work, want a twin in the list", s.name)
		}
	}
	for _, name := range passes {
		if looksLikeWork.MatchString(name) && passedBy[name] == "" {
			t.Errorf("%s looks like work and is not wrapped, want a wrapper, or a reason in passedBy", name)
		}
	}
	for name := range passedBy {
		if !slices.Contains(passes, name) || !looksLikeWork.MatchString(name) {
			t.Errorf("passedBy has %s, which is wrapped or does not look like work: remove it", name)
		}
	}
}

// realDriver lists possible paths of an NVIDIA driver's library.
var realDriver = []string{
	"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
}

// TestRealDriver compares the list with this machine's driver. A function that only the
// driver has is new, and must be examined.
func TestRealDriver(t *testing.T) {
	at := slices.IndexFunc(realDriver, func(path string) bool { _, err := os.Stat(path); return err == nil })
	if at < 0 {
		t.Skip("no NVIDIA driver here")
	}
	rows, known := symbols(t)
	for _, s := range rows {
		known = append(known, s.exportedNames()...)
	}
	got := slices.DeleteFunc(exports(t, realDriver[at]), func(name string) bool {
		return !regexp.MustCompile(`^cu[A-Z]`).MatchString(name)
	})
	t.Logf("%s shows functions that the list does not know: %v", realDriver[at], missing(got, known))
	for _, s := range rows {
		if twin := s.exportedNames()[len(s.exportedNames())-1]; slices.Contains(got, s.name) && !slices.Contains(got, twin) {
			t.Errorf("exports of the driver: got %s without its twin, want %s", s.name, twin)
		}
	}
}
