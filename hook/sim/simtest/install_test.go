package simtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestInstall runs make install-sim. It then links a program to the installed libraries
// with -lcuda and -lnvidia-ml, and runs it. The program prints the number of devices
// that each of the two libraries reports.
func TestInstall(t *testing.T) {
	dest := t.TempDir()
	install := exec.Command("make", "-s", "-C", "../../..", "install-sim", "BUILD="+build(t), "DESTDIR="+dest, "PREFIX=/usr")
	install.Env = without(os.Environ(), "MAKEFLAGS")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("make install-sim: %v\n%s", err, out)
	}
	libs, program := filepath.Join(dest, "usr/lib/gfaas/sim"), filepath.Join(dest, "program")
	compile := exec.Command("gcc", "-I../..", "-o", program, "testdata/installed.c", "-L"+libs, "-lcuda", "-lnvidia-ml")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile and link testdata/installed.c: %v\n%s", err, out)
	}
	cmd := newHost(t, "sms=8,mem=64MiB,count=2").command("", "") // for its environment
	cmd.Path, cmd.Args = program, []string{program}
	cmd.Env = append(without(cmd.Env, "LD_LIBRARY_PATH"), "LD_LIBRARY_PATH="+libs)
	if out, err := run(cmd); err != nil || out != "2 2\n" {
		t.Errorf("devices that the installed CUDA and NVML libraries report: got %q and the error %v, want \"2 2\\n\"", out, err)
	}
}
