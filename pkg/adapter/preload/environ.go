// Package preload knows what puts a program under a slice of a GPU: where the
// preload library and the simulated driver are, which programs the library
// can be loaded into, and the environment that a program needs.
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
	"github.com/gfaas/gfaas/pkg/number"
)

// Grant is what a program may use, and how it proves it.
type Grant struct {
	Socket   string   // the token daemon's client socket, as the program sees it
	Instance string   // the instance's identity
	Secret   string   // proves the identity; only ever in the environment
	GPU      []string // names as in gpu.ParseDevice, all simulated or none
	SMPct    float64  // share of the streaming multiprocessors, (0, 100]
	Libs     Libs

	MPSPipeDir string    // the MPS daemon the program runs under; empty without one
	Mem        gpu.Bytes // its memory limit, which MPS then watches over too; 0 is none

	// Oversubscribe makes what it allocates managed memory, which is on the
	// host while the program has no work.
	Oversubscribe bool

	// NoNVML leaves what programs read of NVML as it is: else it is about the slice.
	NoNVML bool

	// Env is the environment that the result will be added to; nil is this
	// process's own. Library lists found in it are kept behind ours.
	Env map[string]string
}

// ModelSocket names the socket of the model daemon, to functions with a model.
const ModelSocket = "GFAAS_MODEL_SOCKET"

// Replaced are the variables that every instance, ModelSocket that one with a model, gets
// in place of those of these names in its function's env. In lists, such as LD_PRELOAD,
// what was there goes on.
var Replaced = []string{
	"PORT", "GFAAS_FUNCTION", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_SOCKET", "GFAAS_DEVICES", ModelSocket,
	"CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
}

// Environ is what a program's environment needs so that the preload library
// is loaded and finds its daemon, and the driver grants the SM share. An
// error is Unavailable when a library is missing.
func Environ(g Grant) (map[string]string, error) {
	visible, simulated, err := visibleDevices(g.GPU)
	if err != nil {
		return nil, err
	}
	if !(g.SMPct > 0 && g.SMPct <= 100) {
		return nil, fmt.Errorf("SM share %v is out of range: expected more than 0 and at most 100 percent", g.SMPct)
	}
	if err := usable(g.Libs, simulated); err != nil {
		return nil, err
	}
	env := map[string]string{
		"GFAAS_SOCKET":         g.Socket,
		"GFAAS_INSTANCE":       g.Instance,
		"GFAAS_SECRET":         g.Secret,
		"LD_PRELOAD":           lead(g.Libs.Hook, g.get("LD_PRELOAD"), " :"),
		"CUDA_VISIBLE_DEVICES": visible,
		"GFAAS_DEVICES":        visible, // stays, where a program narrows the list for its workers
		// NVML and nvidia-smi count devices by bus; CUDA, unless told, by speed.
		"CUDA_DEVICE_ORDER":                 "PCI_BUS_ID",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage(g.SMPct),
	}
	if simulated {
		env["LD_LIBRARY_PATH"] = lead(g.Libs.SimDir, g.get("LD_LIBRARY_PATH"), ":;")
	}
	switch {
	case g.Oversubscribe:
		env["GFAAS_OVERSUBSCRIBE"] = "1"
	case g.get("GFAAS_OVERSUBSCRIBE") != "":
		env["GFAAS_OVERSUBSCRIBE"] = "" // a slice started within another's is its own
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

// Driver is what the environment of a program of our own needs so that it finds
// the driver of a GPU, and no other GPU. It is under no slice.
func Driver(libs Libs, device string) (map[string]string, error) {
	visible, simulated, err := visibleDevices([]string{device})
	if err != nil {
		return nil, err
	}
	if err := usable(libs, simulated); err != nil {
		return nil, err
	}
	env := map[string]string{"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
	if simulated {
		env["LD_LIBRARY_PATH"] = lead(libs.SimDir, os.Getenv("LD_LIBRARY_PATH"), ":;")
	}
	return env, nil
}

// ModelEnviron is what a program needs to find the model daemon at that socket, and
// its client library: in C as libgfaas-model.so, in Python as gfaas_model. What env
// has of the lists stays.
func ModelEnviron(socket string, libs Libs, env map[string]string) map[string]string {
	out := map[string]string{ModelSocket: socket}
	if libs.Model != "" {
		out["LD_LIBRARY_PATH"] = behind(env["LD_LIBRARY_PATH"], filepath.Dir(libs.Model))
	}
	if libs.Python != "" {
		out["PYTHONPATH"] = behind(env["PYTHONPATH"], libs.Python)
	}
	return out
}

// behind puts a folder at the end of a list.
func behind(list, folder string) string {
	if list == "" {
		return folder
	}
	return list + ":" + folder
}

// MPSRoom is what MPS lets a program have above its limit: it counts the
// context too, which the limit leaves out.
const MPSRoom = gpu.GiB

// pinnedLimit is MPS's own limit on device memory: a second fence around the
// preload library's, for what goes past that.
func pinnedLimit(devices int, limit gpu.Bytes) string {
	var parts []string
	for i := range devices {
		parts = append(parts, fmt.Sprintf("%d=%dM", i, (limit+MPSRoom)/gpu.MiB))
	}
	return strings.Join(parts, ",")
}

func (g Grant) get(name string) string {
	if g.Env != nil {
		return g.Env[name]
	}
	return os.Getenv(name)
}

// usable checks that the loader's lists, which know no quoting, can name the
// libraries.
func usable(libs Libs, simulated bool) error {
	switch {
	case libs.Hook == "":
		return &libError{HookFile + " is missing", "run make, or set GFAAS_LIB_DIR to the folder that holds it"}
	case strings.ContainsAny(libs.Hook, " :\t\n"):
		return &libError{fmt.Sprintf("%q cannot be preloaded: LD_PRELOAD takes no blanks or colons", libs.Hook),
			"install gfaas in a folder without blanks and colons in its path"}
	case simulated && libs.SimDir == "":
		return &libError{fmt.Sprintf("the simulated %s is missing beside %s", DriverFile, libs.Hook),
			"run make, or name a GPU with --gpu"}
	case simulated && strings.ContainsAny(libs.SimDir, ":;"):
		return &libError{fmt.Sprintf("%q cannot be searched: LD_LIBRARY_PATH takes no colons", libs.SimDir),
			"install gfaas in a folder without colons in its path"}
	}
	return nil
}

// visibleDevices is the value of CUDA_VISIBLE_DEVICES for these GPUs.
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

// percentage prints an SM share for MPS: at most three decimals, never zero.
func percentage(pct float64) string {
	rounded := max(math.Round(pct*1000)/1000, 0.001)
	return number.Plain(rounded)
}

// lead puts path at the head of a list and takes it out of the rest.
func lead(path, list, separators string) string {
	rest := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(separators, r) })
	rest = slices.DeleteFunc(rest, func(s string) bool { return s == path })
	return strings.Join(append([]string{path}, rest...), ":")
}

// NewSecret is a new secret: 24 random bytes in hexadecimal.
func NewSecret() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the program instead
	return hex.EncodeToString(b[:])
}

// File names of what make and make install put into a library folder.
const (
	HookFile   = "libgfaas.so"
	DriverFile = "libcuda.so.1"
	ModelFile  = "libgfaas-model.so"
	modelPy    = "gfaas_model.py"
	simFolder  = "sim"
)

// Libs is where the libraries are that programs are run with.
type Libs struct {
	Hook   string // path of libgfaas.so
	SimDir string // folder of the simulated libcuda.so.1; empty when it is not installed
	Model  string // path of libgfaas-model.so; empty when it is not installed
	Python string // folder of gfaas_model.py; empty when it is not installed
}

// FindLibs looks for the libraries in $GFAAS_LIB_DIR or, when that is not set,
// beside this program (../lib, ../lib/gfaas) and in the system's folders. Its
// error is Unavailable.
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
	return Libs{}, &libError{
		Message: fmt.Sprintf("%s is missing: looked in %s", HookFile, strings.Join(dirs, ", ")),
		Remedy:  remedy,
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// HasNVIDIA reports whether a real driver is there: its control device, and
// its library where the dynamic loader looks.
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
		// A folder named sim is ours: inside gfaas run it leads the list.
		if dir != "" && filepath.Base(dir) != simFolder && isFile(filepath.Join(dir, DriverFile)) {
			return true
		}
	}
	return false
}
