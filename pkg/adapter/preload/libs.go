// Package preload knows what puts a program under a slice of a GPU: where the
// preload library and the simulated driver are, which programs the library
// can be loaded into, and the environment that a program needs.
package preload

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// File names of what make and make install put into a library folder.
const (
	HookFile   = "libgfaas.so"
	DriverFile = "libcuda.so.1"
	simFolder  = "sim"
)

// Libs is where the libraries are that programs are run with.
type Libs struct {
	Hook   string // path of libgfaas.so
	SimDir string // folder of the simulated libcuda.so.1; empty when it is not installed
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
