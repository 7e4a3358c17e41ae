package preload

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFurnish(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	libs := Libs{Hook: filepath.Join(from, HookFile), SimDir: filepath.Join(from, "sim")}
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(libs.Hook, "one")
	write(filepath.Join(libs.SimDir, DriverFile), "driver")
	furnish := func() os.FileInfo {
		t.Helper()
		if err := Furnish(to, libs); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(to, HookFile))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := furnish()
	if text, err := os.ReadFile(filepath.Join(to, "sim", DriverFile)); err != nil || string(text) != "driver" {
		t.Errorf("simulated driver: %q, %v", text, err)
	}
	if second := furnish(); !os.SameFile(first, second) {
		t.Error("an equal library was replaced")
	}
	write(libs.Hook, "two")
	if third := furnish(); os.SameFile(first, third) {
		t.Error("a library that programs may have loaded was changed in place")
	}
	if err := Furnish(to, Libs{Hook: filepath.Join(from, "absent")}); err == nil {
		t.Error("missing library: no error")
	}
}
