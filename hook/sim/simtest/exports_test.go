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

// row is one line of the list of symbols, as far as exports go.
var row = regexp.MustCompile(`(?m)^CU\((\w+), (\d+), (NONE|PTSZ|PTDS), ([A-Z]+), ([A-Z]+), `)

// nameOnly is one that names a function and nothing else.
var nameOnly = regexp.MustCompile(`(?m)^CU_NAME\((\w+)\)$`)

// The driver exports every symbol of the list, with its twin, and nothing else.
func TestExports(t *testing.T) {
	list, err := os.ReadFile("../../symbols.def")
	if err != nil {
		t.Fatal(err)
	}
	rows := row.FindAllStringSubmatch(string(list), -1)
	if len(rows) != strings.Count(string(list), "\nCU(") || len(rows) < 400 {
		t.Fatalf("%d rows understood of %d", len(rows), strings.Count(string(list), "\nCU("))
	}
	var want []string
	for _, m := range nameOnly.FindAllStringSubmatch(string(list), -1) {
		want = append(want, m[1])
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
			t.Errorf("%s is not exported", name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s is exported but not in the list", name)
		}
	}
}

// What is exported and not simulated says so.
func TestStubs(t *testing.T) {
	if out, err := run(newHost(t, small).command("", "stubs")); err != nil {
		t.Errorf("%v\n%s", err, failures(out))
	}
}

// Its own calls must not pass through a preloaded library.
func TestSymbolic(t *testing.T) {
	lib := filepath.Join(build(t), "lib/sim/libcuda.so.1")
	out, err := exec.Command("readelf", "-dW", lib).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "SYMBOLIC") || !strings.Contains(string(out), "[libcuda.so.1]") {
		t.Errorf("not linked with -Bsymbolic and the soname libcuda.so.1:\n%s", out)
	}
	out, err = exec.Command("nm", "-D", "--undefined-only", lib).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(out), "\n") {
		if f := strings.Fields(l); len(f) == 2 && strings.HasPrefix(f[1], "cu") {
			t.Errorf("%s is looked up outside", f[1])
		}
	}
}
