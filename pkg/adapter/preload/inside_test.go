package preload

import (
	"os"
	"path/filepath"
	"testing"
)

// A container's programs load the library first and then the image's entries, and find the
// slice's variables, but neither the loader's lists nor the function's variables.
func TestWriteInside(t *testing.T) {
	env := map[string]string{
		"GFAAS_INSTANCE": "a", "GFAAS_SECRET": "s", "CUDA_VISIBLE_DEVICES": "0,1", "LD_PRELOAD": InsideHook, "LD_LIBRARY_PATH": "/x", "OWN": "1",
		"GFAAS_SIM_GPU": "two\nlines",
	}
	for name, c := range map[string]struct{ image, list string }{
		"without a list":   {"", InsideHook + "\n"},
		"with one":         {"/own.so\n", InsideHook + "\n/own.so\n"},
		"without its end":  {"# a\n/own.so", InsideHook + "\n# a\n/own.so\n"},
		"that has a blank": {"/a.so /b.so", InsideHook + "\n/a.so /b.so\n"},
	} {
		dir := t.TempDir()
		if err := WriteInside(dir, env, c.image); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{PreloadFile: c.list, SliceFile: "CUDA_VISIBLE_DEVICES=0,1\nGFAAS_INSTANCE=a\nGFAAS_SECRET=s\n"} {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(text) != want {
				t.Errorf("%s: %s is %q, %v, want %q", name, file, text, err, want)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, SliceFile)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s: got %v, %v; want 0600", name, info.Mode(), err)
		}
	}
}
