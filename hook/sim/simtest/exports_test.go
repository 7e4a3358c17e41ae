package simtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// row matches a row of the list of symbols, with the columns that matter for exports.
var row = regexp.MustCompile(`(?m)^CU\d+\((\w+), (\d+), (NONE|PTSZ|PTDS), ([A-Z]+),\s+([A-Z]+)[,(]`)

// nameOnly matches a row that only names a function.
var nameOnly = regexp.MustCompile(`(?m)^CU_NAME\((\w+), \d+\)$`)

// TestExports checks that the driver exports every symbol of the list and its twin, and
// no other symbols.
func TestExports(t *testing.T) {
	list, err := os.ReadFile("../../symbols.def")
	if err != nil {
		t.Fatal(err)
	}
	rows := row.FindAllStringSubmatch(string(list), -1)
	var want []string
	for _, m := range nameOnly.FindAllStringSubmatch(string(list), -1) {
		want = append(want, m[1])
	}
	if n := strings.Count(string(list), "\nCU"); n != len(rows)+len(want) || n < 600 {
		t.Fatalf("%d rows and %d names understood of %d", len(rows), len(want), n)
	}
	for _, r := range rows {
		want = append(want, r[1])
		if r[3] != "NONE" {
			want = append(want, r[1]+"_"+strings.ToLower(r[3]))
		}
	}
	out, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(build(t), "lib/sim/libcuda.so.1")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		name, _, _ := strings.Cut(strings.Fields(l)[2], "@")
		got = append(got, name)
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("exports of the driver: got no %s, want it", name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("exports of the driver: got %s, want only functions of the list", name)
		}
	}
}

// TestStubs checks that exported functions which are not simulated return an error.
func TestStubs(t *testing.T) {
	t.Parallel()
	if out, err := run(newHost(t, small).command("", "stubs")); err != nil {
		t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
	}
}

// TestSymbolic checks that the driver's calls of its own functions do not pass through
// a preloaded library.
func TestSymbolic(t *testing.T) {
	lib := filepath.Join(build(t), "lib/sim/libcuda.so.1")
	out, err := exec.Command("readelf", "-dW", lib).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "SYMBOLIC") || !strings.Contains(string(out), "[libcuda.so.1]") {
		t.Errorf("dynamic section of the driver: want SYMBOLIC and the soname libcuda.so.1, got\n%s", out)
	}
	out, err = exec.Command("nm", "-D", "--undefined-only", lib).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(out), "\n") {
		if f := strings.Fields(l); len(f) == 2 && strings.HasPrefix(f[1], "cu") {
			t.Errorf("undefined symbols of the driver: got %s, want no function of the driver itself", f[1])
		}
	}
}
