package preload

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Furnish copies the preload library, and the simulated driver if there is one, to a folder that containers mount
// at InsideFolder. It replaces only files that differ, and never changes one that a program has loaded.
func Furnish(dir string, libs Libs) error {
	files := map[string]string{HookFile: libs.Hook}
	if libs.SimDir != "" {
		entries, err := os.ReadDir(libs.SimDir)
		if err != nil {
			return fmt.Errorf("copy the simulated driver: %w", err)
		}
		if err := os.Mkdir(filepath.Join(dir, simFolder), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("copy the simulated driver: %w", err)
		}
		for _, e := range entries {
			files[filepath.Join(simFolder, e.Name())] = filepath.Join(libs.SimDir, e.Name())
		}
	}
	for name, source := range files {
		text, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("copy a library: %w", err)
		}
		target := filepath.Join(dir, name)
		if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := renameio.WriteFile(target, text, 0o755); err != nil {
			return fmt.Errorf("copy a library: %w", err)
		}
	}
	return nil
}
