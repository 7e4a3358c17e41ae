package instancetest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/probe.c
var probeSource []byte

// BuildProbe compiles the suite's program with $CC or gcc and returns its path.
func BuildProbe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	Compile(t, path, probeSource, "-O1")
	return path
}

// BuildLibs compiles stand-ins for the preload library and the simulated driver, which have
// no effect. It returns the path of the library and the folder of the driver.
func BuildLibs(t *testing.T) (hook, simDir string) {
	t.Helper()
	return BuildLibsIn(t, t.TempDir())
}

// BuildLibsIn compiles the libraries of BuildLibs into a folder that may outlive the test.
func BuildLibsIn(t *testing.T, dir string) (hook, simDir string) {
	t.Helper()
	hook, simDir = filepath.Join(dir, "libgfaas.so"), filepath.Join(dir, "sim")
	if err := os.Mkdir(simDir, 0o755); err != nil {
		t.Fatal(err)
	}
	Compile(t, hook, nil, "-shared", "-fPIC")
	Compile(t, filepath.Join(simDir, "libcuda.so.1"), nil, "-shared", "-fPIC")
	return hook, simDir
}

// Compile compiles C source into a program, or into a library if flags select that.
func Compile(t testing.TB, out string, source []byte, flags ...string) {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	file := filepath.Join(t.TempDir(), "source.c")
	if err := os.WriteFile(file, append(source, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-o", out, file}, flags...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, text)
	}
}
