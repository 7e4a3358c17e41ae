package tokend

import (
	"debug/elf"
	"os/exec"
	"testing"
)

// The daemon that make builds is at other addresses each time, and runs on machines
// without a driver.
func TestHardened(t *testing.T) {
	const path = "../../../build/bin/gfaas-tokend"
	f, err := elf.Open(path)
	if err != nil {
		t.Fatalf("run make first: %v", err)
	}
	defer f.Close()
	if f.Type != elf.ET_DYN {
		t.Errorf("it is %v, want %v", f.Type, elf.ET_DYN)
	}
	if text, err := exec.Command(path, "--version").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}
