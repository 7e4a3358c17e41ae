package simtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestInstall installs the simulated driver, and links and runs a program with it by
// the names that -lcuda and -lnvidia-ml look up.
func TestInstall(t *testing.T) {
	dest := t.TempDir()
	install := exec.Command("make", "-s", "-C", "../../..", "install-sim", "BUILD="+build(t), "DESTDIR="+dest, "PREFIX=/usr")
	install.Env = without(os.Environ(), "MAKEFLAGS")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	libs, program := filepath.Join(dest, "usr/lib/gfaas/sim"), filepath.Join(dest, "program")
	compile := exec.Command("gcc", "-I../..", "-o", program, "testdata/installed.c", "-L"+libs, "-lcuda", "-lnvidia-ml")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile against the installed files: %v\n%s", err, out)
	}
	cmd := newHost(t, "sms=8,mem=64MiB,count=2").command("", "")
	cmd.Path, cmd.Args = program, []string{program}
	cmd.Env = append(without(cmd.Env, "LD_LIBRARY_PATH"), "LD_LIBRARY_PATH="+libs)
	if out, err := run(cmd); err != nil || out != "2 2\n" {
		t.Errorf("program with the installed libraries: got %q, %v; want two devices of both libraries", out, err)
	}
}
