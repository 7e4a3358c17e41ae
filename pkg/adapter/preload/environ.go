// Package preload prepares programs to run in a slice of a GPU: it finds the preload
// library and the simulated driver (FindLibs), checks that the library can be loaded into a
// program (CheckProgram, CheckLoads), and composes the environment that the program needs
// (Environ). The runtimes in pkg/adapter/process and pkg/adapter/docker use it, as does
// gfaas run.
package preload

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/number"
)

// Grant describes a slice and the credentials of a program in it.
type Grant struct {
	Socket   string   // path of the token daemon's client socket, as the program sees it
	Instance string   // the instance's ID
	Secret   string   // proves the identity; passed only in the environment
	Signed   string   // the signed grant with which the instance registers itself (pkg/grant); empty: it is registered
	GPU      []string // names as in gpu.ParseDevice: all simulated or all real
	SMPct    float64  // share of the streaming multiprocessors, (0, 100]
	Libs     Libs

	MPSPipeDir string    // pipe directory of the program's MPS daemon; empty without MPS
	Mem        gpu.Bytes // memory limit, which MPS enforces as well; 0 means none

	// AllSMs lets the program's kernels use all SMs; SMPct is not enforced.
	AllSMs bool

	// Oversubscribe, unless empty, turns the program's allocations into managed memory, which the
	// preload library moves to the host by this rule.
	Oversubscribe gpu.Oversubscription

	// NoNVML leaves NVML's values unchanged; otherwise, programs see those of the slice.
	NoNVML bool

	// Env is the environment that the result will be added to; nil means this process's
	// environment. Library lists in it are appended to the new ones.
	Env map[string]string
}

// ModelSocket is the variable with the path of the model daemon's socket, set for functions
// with a model.
const ModelSocket = "GFAAS_MODEL_SOCKET"

// Replaced lists the variables that override the function's env in every instance
// (ModelSocket only with a model). Lists such as LD_PRELOAD are not among them: they keep
// the function's entries.
var Replaced = []string{
	"PORT", "GFAAS_FUNCTION", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_GRANT", "GFAAS_SOCKET", "GFAAS_DEVICES", ModelSocket,
	"CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
}

// Environ returns the variables that make a program load the preload library, connect to
// its daemon and get its SM share from the driver. If a library is missing, the error is a
// *ports.UnavailableError.
func Environ(g Grant) (map[string]string, error) {
	visible, simulated, err := visibleDevices(g.GPU)
	if err != nil {
		return nil, err
	}
	if !(g.SMPct > 0 && g.SMPct <= 100) {
		return nil, fmt.Errorf("SM share %v is out of range: expected more than 0 and at most 100 percent", g.SMPct)
	}
	if err := checkLibs(g.Libs, simulated); err != nil {
		return nil, err
	}
	env := map[string]string{
		"GFAAS_SOCKET":         g.Socket,
		"GFAAS_INSTANCE":       g.Instance,
		"GFAAS_SECRET":         g.Secret,
		"LD_PRELOAD":           prependPath(g.Libs.Hook, g.inheritedVar("LD_PRELOAD"), " :"),
		"CUDA_VISIBLE_DEVICES": visible,
		"GFAAS_DEVICES":        visible, // remains if a program narrows CUDA_VISIBLE_DEVICES for its workers
		// NVML and nvidia-smi order devices by bus; CUDA's default order is by speed.
		"CUDA_DEVICE_ORDER":                 "PCI_BUS_ID",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage(g.SMPct),
	}
	if simulated {
		env["LD_LIBRARY_PATH"] = prependPath(g.Libs.SimDir, g.inheritedVar("LD_LIBRARY_PATH"), ":;")
	}
	if g.AllSMs {
		env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = percentage(100)
	}
	switch {
	case g.Oversubscribe != gpu.SwapNever:
		env["GFAAS_OVERSUBSCRIBE"] = string(g.Oversubscribe)
	case g.inheritedVar("GFAAS_OVERSUBSCRIBE") != "":
		env["GFAAS_OVERSUBSCRIBE"] = "" // a slice started within another slice has its own setting
	}
	if g.Signed != "" || g.inheritedVar("GFAAS_GRANT") != "" {
		env["GFAAS_GRANT"] = g.Signed // a slice started within an instance with a grant is another one
	}
	if g.NoNVML {
		env["GFAAS_NO_NVML"] = "1"
	}
	if g.MPSPipeDir != "" {
		env["CUDA_MPS_PIPE_DIRECTORY"] = g.MPSPipeDir
		if g.Mem > 0 {
			env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = pinnedLimit(len(g.GPU), g.Mem)
		}
	}
	return env, nil
}

// Driver returns the variables with which one of gfaas's own programs, such as an executor of
// gfaas-kerneld, uses a GPU outside any slice. The program sees only that GPU; the variables
// do not make it load the preload library.
func Driver(libs Libs, device string) (map[string]string, error) {
	visible, simulated, err := visibleDevices([]string{device})
	if err != nil {
		return nil, err
	}
	if err := checkLibs(libs, simulated); err != nil {
		return nil, err
	}
	env := map[string]string{"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
	if simulated {
		env["LD_LIBRARY_PATH"] = prependPath(libs.SimDir, os.Getenv("LD_LIBRARY_PATH"), ":;")
	}
	return env, nil
}

// ModelEnviron returns the variables that a program needs to reach the model daemon at a
// socket and to find its client library: libgfaas-model.so for C, gfaas_model for Python.
// It keeps the entries of the lists in env.
func ModelEnviron(socket string, libs Libs, env map[string]string) map[string]string {
	out := map[string]string{ModelSocket: socket}
	if libs.Model != "" {
		out["LD_LIBRARY_PATH"] = appendFolder(env["LD_LIBRARY_PATH"], filepath.Dir(libs.Model))
	}
	if libs.Python != "" {
		out["PYTHONPATH"] = appendFolder(env["PYTHONPATH"], libs.Python)
	}
	return out
}

// appendFolder appends a folder to a list that is separated by colons.
func appendFolder(list, folder string) string {
	if list == "" {
		return folder
	}
	return list + ":" + folder
}

// MPSRoom is how far MPS's memory limit exceeds the program's: MPS also counts the CUDA
// context, which the program's limit excludes.
const MPSRoom = gpu.GiB

// pinnedLimit returns MPS's limit on device memory: a second barrier for allocations that
// bypass the preload library.
func pinnedLimit(devices int, limit gpu.Bytes) string {
	var limits []string
	for i := range devices {
		limits = append(limits, fmt.Sprintf("%d=%dM", i, (limit+MPSRoom)/gpu.MiB))
	}
	return strings.Join(limits, ",")
}

func (g Grant) inheritedVar(name string) string {
	if g.Env != nil {
		return g.Env[name]
	}
	return os.Getenv(name)
}

// checkLibs checks that the libraries exist and that their paths can be written in the
// loader's lists, which have no quoting.
func checkLibs(libs Libs, simulated bool) error {
	switch {
	case libs.Hook == "":
		return libError("run make, or set GFAAS_LIB_DIR to the folder that holds it", "%s is missing", HookFile)
	case strings.ContainsAny(libs.Hook, " :\t\n"):
		return libError("install gfaas in a folder without spaces and colons in its path",
			"cannot preload %q: a path in LD_PRELOAD cannot contain spaces or colons", libs.Hook)
	case simulated && libs.SimDir == "":
		return libError("run make, or name a GPU with --gpu", "the simulated %s is missing next to %s", DriverFile, libs.Hook)
	case simulated && strings.ContainsAny(libs.SimDir, ":;"):
		return libError("install gfaas in a folder without colons and semicolons in its path",
			"cannot search %q: a path in LD_LIBRARY_PATH cannot contain colons or semicolons", libs.SimDir)
	}
	return nil
}

// libError returns the error of a library of gfaas that is missing or cannot be used.
func libError(remedy, format string, args ...any) error {
	return &ports.UnavailableError{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// visibleDevices returns the value of CUDA_VISIBLE_DEVICES for GPUs.
func visibleDevices(names []string) (list string, simulated bool, err error) {
	if len(names) == 0 {
		return "", false, errors.New("no GPU is named")
	}
	var ids []string
	for i, name := range names {
		d, err := gpu.ParseDevice(name)
		if err != nil {
			return "", false, err
		}
		if i > 0 && d.Simulated != simulated {
			return "", false, fmt.Errorf("%s and %s cannot be used together: one is simulated", names[0], name)
		}
		simulated = d.Simulated
		ids = append(ids, d.Visible())
	}
	return strings.Join(ids, ","), simulated, nil
}

// percentage formats an SM share for MPS: at most three decimals, never zero.
func percentage(pct float64) string {
	rounded := max(math.Round(pct*1000)/1000, 0.001)
	return number.Plain(rounded)
}

// prependPath returns the list with path as its first entry and nowhere else. Any of the
// separators may separate the entries of the given list; colons separate those of the result.
func prependPath(path, list, separators string) string {
	rest := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(separators, r) })
	rest = slices.DeleteFunc(rest, func(s string) bool { return s == path })
	return strings.Join(append([]string{path}, rest...), ":")
}

// NewSecret returns 24 random bytes in hexadecimal.
func NewSecret() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime aborts instead
	return hex.EncodeToString(b[:])
}

// Names of the files that make and make install put into a library folder.
const (
	HookFile   = "libgfaas.so"
	DriverFile = "libcuda.so.1"
	ModelFile  = "libgfaas-model.so"
	modelPy    = "gfaas_model.py"
	simFolder  = "sim"
)

// Libs holds the locations of the libraries.
type Libs struct {
	Hook   string // path of libgfaas.so
	SimDir string // folder of the simulated libcuda.so.1; empty if not installed
	Model  string // path of libgfaas-model.so; empty if not installed
	Python string // folder of gfaas_model.py; empty if not installed
}

// FindLibs finds the libraries in $GFAAS_LIB_DIR or, if that is unset, relative to this
// program (../lib, ../lib/gfaas) and in the system's folders. Its error is a
// *ports.UnavailableError.
func FindLibs() (Libs, error) {
	if dir := os.Getenv("GFAAS_LIB_DIR"); dir != "" {
		return findLibs([]string{dir}, "correct GFAAS_LIB_DIR, or unset it")
	}
	var dirs []string
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		lib := filepath.Join(filepath.Dir(exe), "..", "lib")
		dirs = append(dirs, lib, filepath.Join(lib, "gfaas"))
	}
	dirs = append(dirs, "/usr/local/lib/gfaas", "/usr/lib/gfaas")
	return findLibs(dirs, "run make, or set GFAAS_LIB_DIR to the folder that holds "+HookFile)
}

func findLibs(dirs []string, remedy string) (Libs, error) {
	for _, dir := range dirs {
		hook, err := filepath.Abs(filepath.Join(dir, HookFile))
		if err != nil || !isFile(hook) {
			continue
		}
		if real, err := filepath.EvalSymlinks(hook); err == nil {
			hook = real
		}
		libs := Libs{Hook: hook}
		if sim := filepath.Join(filepath.Dir(hook), simFolder); isFile(filepath.Join(sim, DriverFile)) {
			libs.SimDir = sim
		}
		if model := filepath.Join(filepath.Dir(hook), ModelFile); isFile(model) {
			libs.Model = model
		}
		if python := filepath.Join(filepath.Dir(hook), "python"); isFile(filepath.Join(python, modelPy)) {
			libs.Python = python
		}
		return libs, nil
	}
	return Libs{}, libError(remedy, "%s is missing: looked in %s", HookFile, strings.Join(dirs, ", "))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// HasNVIDIA reports whether NVIDIA's driver is installed: its control device exists, and
// its library is in the dynamic loader's path.
func HasNVIDIA() bool {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		return false
	}
	if cache, err := os.ReadFile("/etc/ld.so.cache"); err == nil && bytes.Contains(cache, []byte(DriverFile+"\x00")) {
		return true
	}
	dirs := strings.Split(os.Getenv("LD_LIBRARY_PATH"), ":")
	dirs = append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/nvidia/lib64",
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
	for _, dir := range dirs {
		// Skip our simulated driver, which is first in the list inside gfaas run.
		if dir != "" && filepath.Base(dir) != simFolder && isFile(filepath.Join(dir, DriverFile)) {
			return true
		}
	}
	return false
}
