package preload

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEnviron(t *testing.T) {
	libs := Libs{Hook: "/lib/libgfaas.so", SimDir: "/lib/sim"}
	grant := Grant{Socket: "/run/token.sock", Instance: "a-0", Secret: "s", SMPct: 24, Libs: libs}
	common := map[string]string{"GFAAS_SOCKET": "/run/token.sock", "GFAAS_INSTANCE": "a-0", "GFAAS_SECRET": "s"}
	for _, c := range []struct {
		name string
		gpus []string
		pct  float64
		env  map[string]string
		want map[string]string
	}{
		{"all SMs", []string{"0"}, 50, map[string]string{}, map[string]string{
			"LD_PRELOAD": "/lib/libgfaas.so", "CUDA_VISIBLE_DEVICES": "0", "GFAAS_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
		}},
		{"simulated", []string{"sim"}, 24, map[string]string{}, map[string]string{
			"LD_PRELOAD": "/lib/libgfaas.so", "LD_LIBRARY_PATH": "/lib/sim",
			"CUDA_VISIBLE_DEVICES": "0", "GFAAS_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "24",
		}},
		{"lists are kept behind ours", []string{"sim"}, 12.5, map[string]string{
			"LD_PRELOAD": "/a.so /lib/libgfaas.so:/b.so", "LD_LIBRARY_PATH": "/x:/lib/sim:/y",
		}, map[string]string{
			"LD_PRELOAD": "/lib/libgfaas.so:/a.so:/b.so", "LD_LIBRARY_PATH": "/lib/sim:/x:/y",
			"CUDA_VISIBLE_DEVICES": "0", "GFAAS_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5",
		}},
		{"NVIDIA", []string{"2", "3"}, 100.0 / 3, map[string]string{"LD_LIBRARY_PATH": "/x"}, map[string]string{
			"LD_PRELOAD": "/lib/libgfaas.so", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
			"CUDA_VISIBLE_DEVICES": "2,3", "GFAAS_DEVICES": "2,3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.333",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := grant
			g.GPU, g.SMPct, g.Env, g.AllSMs = c.gpus, c.pct, c.env, c.name == "all SMs"
			got, err := Environ(g)
			if err != nil {
				t.Fatal(err)
			}
			want := maps.Clone(common)
			maps.Copy(want, c.want)
			if !maps.Equal(got, want) {
				t.Errorf("Environ = %v\nwant %v", got, want)
			}
			for name := range got {
				if !slices.Contains(Replaced, name) && !slices.Contains([]string{"LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_DEVICE_ORDER"}, name) {
					t.Errorf("variables that are replaced: got no %s, want it", name)
				}
			}
		})
	}
}

func TestEnvironInherits(t *testing.T) {
	t.Setenv("LD_PRELOAD", "/mine.so")
	got, err := Environ(Grant{GPU: []string{"0"}, SMPct: 100, Libs: Libs{Hook: "/lib/libgfaas.so"}})
	if err != nil || got["LD_PRELOAD"] != "/lib/libgfaas.so:/mine.so" {
		t.Errorf("LD_PRELOAD = %q, %v; want /lib/libgfaas.so:/mine.so", got["LD_PRELOAD"], err)
	}
	if _, set := got["GFAAS_NO_NVML"]; set {
		t.Errorf("GFAAS_NO_NVML without NoNVML: got %q, want it unset", got["GFAAS_NO_NVML"])
	}
	got, err = Environ(Grant{GPU: []string{"0"}, SMPct: 100, Libs: Libs{Hook: "/lib/libgfaas.so"}, NoNVML: true})
	if err != nil || got["GFAAS_NO_NVML"] != "1" {
		t.Errorf("GFAAS_NO_NVML = %q, %v; want 1", got["GFAAS_NO_NVML"], err)
	}
}

func TestEnvironErrors(t *testing.T) {
	good := Libs{Hook: "/lib/libgfaas.so", SimDir: "/lib/sim"}
	for _, c := range []struct {
		name        string
		grant       Grant
		want        string
		unavailable bool
	}{
		{"no GPU", Grant{SMPct: 1, Libs: good}, "no GPU", false},
		{"bad GPU", Grant{GPU: []string{"x"}, SMPct: 1, Libs: good}, `"x" is not a GPU`, false},
		{"mixed", Grant{GPU: []string{"0", "sim"}, SMPct: 1, Libs: good}, "one is simulated", false},
		{"no share", Grant{GPU: []string{"0"}, Libs: good}, "out of range", false},
		{"no hook", Grant{GPU: []string{"0"}, SMPct: 1}, "libgfaas.so is missing", true},
		{"blank", Grant{GPU: []string{"0"}, SMPct: 1, Libs: Libs{Hook: "/a b/libgfaas.so"}}, "spaces or colons", true},
		{"no driver", Grant{GPU: []string{"sim"}, SMPct: 1, Libs: Libs{Hook: "/lib/libgfaas.so"}}, "simulated libcuda.so.1 is missing", true},
		{"colon", Grant{GPU: []string{"sim"}, SMPct: 1, Libs: Libs{Hook: "/lib/libgfaas.so", SimDir: "/a:b"}}, "cannot contain colons", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Environ(c.grant)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error = %v, want one with %q", err, c.want)
			}
			if isUnavailable(err) != c.unavailable {
				t.Errorf("Unavailable is %v, want %v", !c.unavailable, c.unavailable)
			}
		})
	}
}

// For any previous list, our library comes first, once, and no other entry is lost.
func TestLeadProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rest := rapid.SliceOf(rapid.StringMatching(`/[a-z]{1,3}\.so`)).Draw(t, "rest")
		got := strings.Split(prependPath("/ours.so", strings.Join(rest, ":"), " :"), ":")
		if got[0] != "/ours.so" || !equal(got[1:], rest) {
			t.Fatalf("list with %v: got %v, want /ours.so once, then the others", rest, got)
		}
		again := prependPath("/ours.so", strings.Join(got, ":"), " :")
		if again != strings.Join(got, ":") {
			t.Fatalf("list with the library prepended twice: got %q, want %q", again, strings.Join(got, ":"))
		}
	})
}

func equal(a, b []string) bool { return strings.Join(a, "\n") == strings.Join(b, "\n") }

func TestPercentage(t *testing.T) {
	for pct, want := range map[float64]string{100: "100", 24: "24", 12.5: "12.5", 0.0001: "0.001", 99.9996: "100"} {
		if got := percentage(pct); got != want {
			t.Errorf("Percentage(%v) = %s, want %s", pct, got, want)
		}
	}
}

func TestNewSecret(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if len(a) != 48 || a == b {
		t.Errorf("NewSecret: got %q, then %q; want 48 characters, and another at the second time", a, b)
	}
}

func TestFindLibs(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GFAAS_LIB_DIR", dir)
	if _, err := FindLibs(); err == nil || !isUnavailable(err) {
		t.Errorf("an empty folder: error %v, want an Unavailable one", err)
	}
	write(t, filepath.Join(dir, HookFile))
	libs, err := FindLibs()
	if want := (Libs{Hook: filepath.Join(dir, HookFile)}); err != nil || libs != want {
		t.Errorf("without the simulated driver: %+v, %v, want %+v", libs, err, want)
	}
	write(t, filepath.Join(dir, "sim", DriverFile))
	libs, err = FindLibs()
	if err != nil || libs.SimDir != filepath.Join(dir, "sim") {
		t.Errorf("libraries with the simulated driver: got %+v, %v; want the folder %s", libs, err, filepath.Join(dir, "sim"))
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}
