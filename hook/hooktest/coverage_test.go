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
	inSim   bool // and is more than a name there
	stream  string
}

// all are the row's exported names: its own and its per-thread twin's.
func (s symbol) all() []string {
	if s.variant == "NONE" {
		return []string{s.name}
	}
	return []string{s.name, s.name + "_" + strings.ToLower(s.variant)}
}

func (s symbol) wrapped() bool { return s.hook != "PASS" }

// streamless rows have no stream among their parameters.
const streamless = "((CUstream)0)"

var (
	rowHead  = regexp.MustCompile(`(?m)^CU\((\w+), (\d+), (NONE|PTSZ|PTDS), ([A-Z]+), ([A-Z]+), (.*),`)
	nameOnly = regexp.MustCompile(`(?m)^CU_NAME\((\w+)\)$`)
	rowWork  = []string{"LAUNCH", "COPY", "SYNC"}
)

// symbols are the rows of the list and the names that it knows without a row.
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
		stream, _, _ := strings.Cut(m[6], ", (")
		rows = append(rows, symbol{m[1], since, m[3], m[4], m[5] != "STUB", stream})
	}
	if n := strings.Count(string(list), "\nCU("); n != len(rows) || n < 480 {
		t.Fatalf("%d rows understood of %d", len(rows), n)
	}
	for _, m := range nameOnly.FindAllStringSubmatch(string(list), -1) {
		names = append(names, m[1])
	}
	return rows, names
}

// exports are the functions that a shared library shows.
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

// missing are the names of a that b lacks.
func missing(a, b []string) []string {
	var out []string
	for _, name := range a {
		if !slices.Contains(b, name) {
			out = append(out, name)
		}
	}
	return out
}

// nvmlHand is a row of the management library's list that is answered for a slice.
var nvmlHand = regexp.MustCompile(`(?m)^NV\((\w+), \w+, HAND, `)

// TestExports compares the lists with what the library shows: a wrapper for
// every row that is not PASS and for its twin, dlsym, dlopen, what starts programs,
// and nothing else.
func TestExports(t *testing.T) {
	rows, names := symbols(t)
	known, want := slices.Clone(names), []string{
		"dlsym", "dlopen", "dlmopen", "execve", "execv", "execvp", "execvpe", "execl", "execle", "execlp", "fexecve", "execveat",
		"posix_spawn", "posix_spawnp", "pidfd_spawn", "pidfd_spawnp", "system", "popen",
	}
	for _, s := range rows {
		known = append(known, s.all()...)
		if s.wrapped() {
			want = append(want, s.all()...)
		}
	}
	list, err := os.ReadFile("../nvml.def")
	if err != nil {
		t.Fatal(err)
	}
	answered := nvmlHand.FindAllStringSubmatch(string(list), -1)
	if len(answered) < 10 {
		t.Errorf("%d functions of the management library understood", len(answered))
	}
	for _, m := range answered {
		want = append(want, m[1])
	}
	slices.Sort(known)
	for i, name := range known[1:] {
		if name == known[i] {
			t.Errorf("%s is in the list twice", name)
		}
	}
	got := exports(t, filepath.Join(build, "lib/libgfaas.so"))
	if lacks := missing(want, got); len(lacks) > 0 {
		t.Errorf("the library does not show %v", lacks)
	}
	if more := missing(got, want); len(more) > 0 {
		t.Errorf("the library shows %v, which the list does not call for", more)
	}
	if more := missing(exports(t, filepath.Join(build, "lib/sim/libcuda.so.1")), known); len(more) > 0 {
		t.Errorf("the simulated driver shows %v, which the list does not know", more)
	}
}

// looksLikeWork matches names of functions that may put work on a GPU, give out
// its memory, or change what a captured graph will do.
var looksLikeWork = regexp.MustCompile(`Launch|Memcpy|Memset|Prefetch|Discard|Decompress|MapArrayAsync|AttachMem|` +
	`GraphUpload|GraphInstantiate|BeginCapture|Async(_v\d)?(_ptsz)?$|` +
	`^cuMem(Alloc|Free|Create|Release)|ArrayCreate|ArrayDestroy|^cuArray3DCreate|PoolCreate|PoolDestroy|PoolTrim|` +
	`CtxCreate|CtxDestroy|PrimaryCtxRe(lease|set)|StreamCreate|StreamDestroy`)

// passedBy are the functions that look like work and are not wrapped, each
// with why. Who adds one here has read what the function does.
var passedBy = map[string]string{
	"cuMemAllocHost_v2": "host memory", "cuMemFreeHost": "host memory",

	"cuSignalExternalSemaphoresAsync": "another waits for it: held back, that would wait for the gate",

	"cuGraphAddMemcpyNode": "describes work that cuGraphLaunch does", "cuGraphMemcpyNodeGetParams": "a query",
	"cuGraphMemcpyNodeSetParams": "describes work that cuGraphLaunch does", "cuGraphExecMemcpyNodeSetParams": "does not change how many kernels it has",
	"cuGraphAddMemsetNode": "describes work that cuGraphLaunch does", "cuGraphMemsetNodeGetParams": "a query",
	"cuGraphMemsetNodeSetParams": "describes work that cuGraphLaunch does", "cuGraphExecMemsetNodeSetParams": "does not change how many kernels it has",

	"cuGreenCtxCreate": "holds a primary context; makes no other current",

	// Forms of CUDA 3.1 with 32-bit addresses, which no driver with unified
	// addressing can give.
	"cuMemAllocHost": "32-bit",

	"cuGLMapBufferObjectAsync":         "graphics memory; no data moves",
	"cuGLMapBufferObjectAsync_v2":      "graphics memory; no data moves",
	"cuGLMapBufferObjectAsync_v2_ptsz": "graphics memory; no data moves",
	"cuGLUnmapBufferObjectAsync":       "graphics memory; no data moves",
}

// twinless are the functions on a stream that have no per-thread twin: they
// are older than per-thread streams.
var twinless = regexp.MustCompile(`^cuLaunchGridAsync$|^cuLaunchCooperativeKernelMultiDevice$|^cuStreamDestroy|^cuGLUnmap|^cuMem(cpy\w+Async)$`)

// TestClasses looks at each row's class: nothing that may be work passes by
// unless it is written down why, and no twin was forgotten.
func TestClasses(t *testing.T) {
	rows, names := symbols(t)
	passes := slices.Clone(names)
	for _, s := range rows {
		if !slices.Contains([]string{"LAUNCH", "COPY", "SYNC", "WATCH", "WAIT", "SWITCH", "HAND", "PASS"}, s.hook) {
			t.Errorf("%s has class %s", s.name, s.hook)
		}
		if s.hook == "PASS" {
			passes = append(passes, s.name)
		}
		twin := s.variant != "NONE"
		if twin && s.stream == streamless && strings.HasSuffix(s.name, "Async") {
			t.Errorf("%s has a twin, but the list does not say where its stream is", s.name)
		}
		if !twin && s.stream != streamless && !twinless.MatchString(s.name) {
			t.Errorf("%s goes to a stream and has no twin", s.name)
		}
		if !twin && slices.Contains(rowWork, s.hook) && s.since > 2000 && !twinless.MatchString(s.name) {
			t.Errorf("%s is work and has no twin", s.name)
		}
	}
	for _, name := range passes {
		if looksLikeWork.MatchString(name) && passedBy[name] == "" {
			t.Errorf("%s looks like work and is not wrapped", name)
		}
	}
	for name := range passedBy {
		if !slices.Contains(passes, name) || !looksLikeWork.MatchString(name) {
			t.Errorf("%s needs no excuse any more", name)
		}
	}
}

// realDriver is where an NVIDIA driver's library would be.
var realDriver = []string{
	"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
}

// TestRealDriver compares the list with the driver of this machine. What it
// has and the list does not know is new: somebody should look at it.
func TestRealDriver(t *testing.T) {
	at := slices.IndexFunc(realDriver, func(path string) bool { _, err := os.Stat(path); return err == nil })
	if at < 0 {
		t.Skip("no NVIDIA driver here")
	}
	rows, known := symbols(t)
	for _, s := range rows {
		known = append(known, s.all()...)
	}
	got := slices.DeleteFunc(exports(t, realDriver[at]), func(name string) bool {
		return !regexp.MustCompile(`^cu[A-Z]`).MatchString(name)
	})
	t.Logf("%s shows functions that the list does not know: %v", realDriver[at], missing(got, known))
	for _, s := range rows {
		if twin := s.all()[len(s.all())-1]; slices.Contains(got, s.name) && !slices.Contains(got, twin) {
			t.Errorf("%s is there, but not %s", s.name, twin)
		}
	}
}
