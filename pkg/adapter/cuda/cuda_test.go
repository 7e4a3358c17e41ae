package cuda_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	"github.com/gfaas/gfaas/pkg/gpu/device/devicetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// memory is the size of the memory of the devices under test.
const memory = 64 * gpu.MiB

// suite tests a Device that has memory bytes.
func suite(t *testing.T, d device.Device) {
	t.Helper()
	if !regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(d.UUID()) {
		t.Errorf("UUID: got %q, want GPU- and a UUID in lower case", d.UUID())
	}
	alloc := func(size gpu.Bytes) device.Memory {
		t.Helper()
		m, err := d.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		if m.Size() < size || m.Size() >= size+d.Granularity() || m.Size()%d.Granularity() != 0 {
			t.Errorf("size of an allocation of %d bytes: got %d, want the next multiple of %d", size, m.Size(), d.Granularity())
		}
		return m
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	t.Run("copies", func(t *testing.T) {
		m := alloc(5 * gpu.MiB)
		a, err := d.Stage(gpu.MiB)
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.Stage(2 * gpu.MiB)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		copy(a.Buffer(), want)
		copy(b.Buffer(), bytes.Repeat([]byte("z"), 2<<20))
		ok(a.Up(m, 3*gpu.MiB+7, len(want)))
		ok(b.Up(m, 0, 2<<20))
		ok(a.Wait())
		ok(b.Wait())
		clear(a.Buffer())
		ok(a.Down(m, 3*gpu.MiB+7, len(want)))
		ok(a.Wait())
		if !bytes.Equal(a.Buffer(), want) {
			t.Error("bytes copied to the device and back: got others, want the same")
		}
		ok(a.Up(m, m.Size(), 0))
		for what, err := range map[string]error{
			"behind the end":   a.Up(m, m.Size()-1, 2),
			"before the begin": a.Down(m, -1, 1),
			"beyond numbers":   a.Down(m, 1<<62, 1),
			"beyond the stage": a.Up(m, 0, len(a.Buffer())+1),
		} {
			if err == nil {
				t.Errorf("copy %s: got no error, want one", what)
			}
		}
		ok(a.Free())
		ok(b.Free())
		ok(m.Free())
	})
	t.Run("shared", func(t *testing.T) {
		m := alloc(gpu.MiB)
		s, err := d.Stage(4)
		if err != nil {
			t.Fatal(err)
		}
		copy(s.Buffer(), "good")
		ok(s.Up(m, 100, 4))
		ok(s.Wait())
		f, err := m.Export()
		if err != nil {
			t.Fatal(err)
		}
		other, err := d.Import(f, m.Size())
		if err != nil {
			t.Fatal(err)
		}
		ok(f.Close())
		ok(m.Free())
		clear(s.Buffer())
		ok(s.Down(other, 100, 4))
		ok(s.Wait())
		if string(s.Buffer()) != "good" {
			t.Errorf("%q in what was imported, want good", s.Buffer())
		}
		ok(other.Free())
		ok(s.Free())
		if other, err := d.Import(os.Stdin, gpu.MiB); err == nil {
			t.Error("import of a descriptor that is no allocation: got no error, want one")
			ok(other.Free())
		}
	})
	t.Run("full", func(t *testing.T) {
		var all []device.Memory
		var err error
		for range 2 * memory / (8 * gpu.MiB) {
			var m device.Memory
			if m, err = d.Alloc(8 * gpu.MiB); err != nil {
				break
			}
			all = append(all, m)
		}
		if !device.Full(err) || len(all) == 0 {
			t.Errorf("allocations until the device is full: got %d of 8 MiB, then %v; want at least one, then an error for lack of memory", len(all), err)
		}
		for _, m := range all {
			ok(m.Free())
		}
		if _, err := d.Alloc(1 << 60); !device.Full(err) {
			t.Errorf("an exbibyte: %v", err)
		}
		if _, err := d.Alloc(0); err == nil {
			t.Error("allocation of 0 bytes: got no error, want one")
		}
		ok(alloc(memory / 2).Free())
	})
}

func TestFake(t *testing.T) {
	d := &devicetest.Fake{ID: "GPU-00000000-0000-0000-0000-000000000000", In: memory}
	suite(t, d)
	if used := d.Used(); used != 0 {
		t.Errorf("used memory at the end: got %d bytes, want 0", used)
	}
}

// TestSimulated runs the suite on the simulated driver, in a child process, because the driver reads the
// environment only once.
func TestSimulated(t *testing.T) {
	library, err := filepath.Abs("../../../build/lib/sim/libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("SIMULATED") != "" {
		d, err := cuda.Open(library, gpu.Device{Simulated: true})
		if err != nil {
			t.Fatal(err)
		}
		suite(t, d)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSimulated$", "-test.v")
	cmd.Env = append(os.Environ(), "SIMULATED=1", "GFAAS_SIM_DIR="+t.TempDir(), "GFAAS_SIM_GPU=mem=64MiB,context=0")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "SKIP") {
		t.Errorf("test with the simulated driver in another process: %v, want it to pass, not to skip:\n%s", err, out)
	}
}

func TestUnavailable(t *testing.T) {
	for library, want := range map[string]string{
		filepath.Join(t.TempDir(), cuda.Library): "cannot open shared object file",
		"libc.so.6":                              "has no cuInit",
	} {
		_, err := cuda.Open(library, gpu.Device{})
		var missing *ports.UnavailableError
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", library, err, want)
		}
	}
}
