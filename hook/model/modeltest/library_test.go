package modeltest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("run %s %s: %v", name, args, err)
	}
	return string(out)
}

// TestLibrary checks that the library exports the functions of its header and no
// others, needs neither a driver nor a glibc after 2.17, and does no work when it is
// loaded.
func TestLibrary(t *testing.T) {
	lib := filepath.Join(build, "lib/libgfaas-model.so")
	header, err := os.ReadFile(filepath.Join(build, "include/gfaas_model.h"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^\w[\w *]*?(gfaas_(?:model|store)_\w+)\(`).FindAllStringSubmatch(string(header), -1) {
		want = append(want, m[1])
	}
	var got []string
	for line := range strings.Lines(output(t, "nm", "-D", "--defined-only", lib)) {
		got = append(got, strings.Fields(line)[2])
	}
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) != 13 {
		t.Errorf("exports of the library: got %q, want the 13 functions of its header, %q", got, want)
	}
	sections := output(t, "objdump", "-p", lib)
	if strings.Contains(sections, "libcuda") {
		t.Error("libraries that the client library needs: got libcuda, want none, so that it loads without a driver")
	}
	for _, m := range regexp.MustCompile(`GLIBC_2\.(\d+)`).FindAllStringSubmatch(output(t, "objdump", "-T", lib), -1) {
		var minor int
		fmt.Sscan(m[1], &minor)
		if minor > 17 {
			t.Errorf("version of the C library that the library needs: got %s, want at most GLIBC_2.17", m[0])
		}
	}
	if text := output(t, "objdump", "-t", "-j", ".init_array", "-j", ".ctors", lib); strings.Count(text, " F ") > 0 {
		t.Errorf("constructors of the library: want none, got\n%s", text)
	}
	env := exec.Command("sh", "-c", "echo works")
	env.Env = []string{"PATH=" + os.Getenv("PATH"), "LD_PRELOAD=" + lib}
	if out, err := env.CombinedOutput(); err != nil || string(out) != "works\n" {
		t.Errorf("program with the library preloaded: got %v with %q, want success with \"works\"", err, out)
	}
}

// TestHeader checks that C and C++ programs can include the header alone.
func TestHeader(t *testing.T) {
	header := filepath.Join(build, "include/gfaas_model.h")
	for _, std := range []string{"-std=c99", "-std=c11"} {
		output(t, "gcc", "-fsyntax-only", "-pedantic", "-Wall", "-Wextra", "-Werror", std, "-xc", header)
	}
	if cc, err := exec.LookPath("g++"); err == nil {
		output(t, cc, "-fsyntax-only", "-pedantic", "-Wall", "-Wextra", "-Werror", "-xc++", header)
	}
}

// FuzzManifest lets the daemon pass arbitrary lists of tensors to the client, which
// neither crashes nor accepts invalid JSON.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(`{"tensors":{"t":{"dtype":"F32","shape":[2,3],"offset":0,"bytes":24}},"metadata":{"a":"b"}}`))
	f.Add([]byte(`{"x":[[{"a":[1e-9,-0,0.5,"\ud83d\ude00"]}],true,false,null]}`))
	f.Add([]byte(`{"tensors":{"\ud800\u0041":{"dtype":"","shape":[],"offset":0,"bytes":0},"":{}}}`))
	memory, size := store(f, nil)
	text := fmt.Sprintf(`{"ok":true,"sha256":"%s","gpu":"%s","size":%d}`, sha, device.UUID(), int64(size))
	var list atomic.Pointer[os.File]
	d := serve(f, func(request) answer { return answer{text: text, files: []*os.File{memory, list.Load()}} })
	ask := asker(f, c, environ(d.path))
	f.Fuzz(func(t *testing.T, m []byte) {
		list.Store(memfd(t, string(m), allSeals))
		if strings.HasPrefix(ask("m"), "0 ") && !json.Valid(m) {
			t.Errorf("list of tensors %q: got success, want an error, because it is not valid JSON", m)
		}
		eventually(t, "the client has closed its connection", func() bool { return d.held() == 0 })
	})
}
