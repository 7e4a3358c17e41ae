package nvml

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// answer is the form of nvidia-smi's, for two devices.
const answer = `0, NVIDIA H200, GPU-1234, 143771, 570.86.15, Disabled
1, Orin (nvgpu), GPU-5678, [N/A], 540.4.0, [N/A]
`

var devices = []Device{
	{Index: 0, Name: "NVIDIA H200", UUID: "GPU-1234", Mem: 143771 * gpu.MiB, Driver: "570.86.15"},
	{Index: 1, Name: "Orin (nvgpu)", UUID: "GPU-5678", Driver: "540.4.0"},
}

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(answer))
	if err != nil || !reflect.DeepEqual(got, devices) {
		t.Errorf("got %+v, %v, want %+v", got, err, devices)
	}
	for name, text := range map[string]string{
		"no number":  "x, a, b, 1, 2, Enabled\n",
		"negative":   "-1, a, b, 1, 2, Enabled\n",
		"few cells":  "0, a, b\n",
		"an apology": "No devices were found\n",
	} {
		if list, err := Parse(strings.NewReader(text)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, list)
		}
	}
}

// program writes a stand-in for nvidia-smi.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLibraries(t *testing.T) {
	smi := SMI{Program: program(t, "test \"$1\" = --query-gpu="+columns+" || exit 2\ncat <<'END'\n"+answer+"END\n")}
	for _, lib := range []Library{smi, Fake{List: devices}} {
		got, err := lib.Devices(t.Context())
		if err != nil || !reflect.DeepEqual(got, devices) {
			t.Errorf("%T: got %+v, %v", lib, got, err)
		}
	}
}

func TestUnavailable(t *testing.T) {
	failing := SMI{Program: program(t, "echo 'driver mismatch'\nexit 18\n")}
	for want, lib := range map[string]Library{
		"driver mismatch": failing,
		"no such file":    SMI{Program: filepath.Join(t.TempDir(), "absent")},
	} {
		_, err := lib.Devices(t.Context())
		u, ok := err.(interface{ Unavailable() bool })
		if !ok || !u.Unavailable() || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want unavailable: %s", err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(answer)
	f.Add("0, \"a, b\", c, 1, 2, Enabled")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Parse(strings.NewReader(text))
		for _, d := range list {
			if err != nil || d.Index < 0 || d.Mem < 0 {
				t.Errorf("%q: %+v, %v", text, d, err)
			}
		}
	})
}
