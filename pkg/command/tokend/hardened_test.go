package tokend

import (
	"debug/elf"
	"os/exec"
	"testing"
)

// TestHardened checks that the daemon is a position-independent executable, and does not depend on a driver.
func TestHardened(t *testing.T) {
	const path = "../../../build/bin/gfaas-tokend"
	f, err := elf.Open(path)
	if err != nil {
		t.Fatalf("run make first: %v", err)
	}
	defer f.Close()
	if f.Type != elf.ET_DYN {
		t.Errorf("type of the executable: got %v, want %v", f.Type, elf.ET_DYN)
	}
	if text, err := exec.Command(path, "--version").CombinedOutput(); err != nil {
		t.Errorf("--version without a driver: %v, want success: %s", err, text)
	}
}
