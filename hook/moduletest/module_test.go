// Package moduletest checks the order of the preload library's modules. It needs a C compiler
// and nm, and no GPU.
package moduletest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// layers lists the modules of hook, lowest first. A module may use the modules of lower layers,
// and no other of its own layer.
var layers = [][]string{
	{"say", "clock", "loader", "budget"},
	{"real"},
	{"query", "uuid"},
	{"device", "visible"},
	{"thread", "limit", "terminate"},
	{"handshake"}, // and wire.h, which all may include
	{"link", "unmanaged"},
	{"fault"},
	{"wait", "memory"},
	{"meter", "graph_stats"},
	{"stream"},
	{"gate"},
	{"graph", "wrap"},
	{"helper"},
	{"lookup", "exec"},
}

// parts names the module of each file that is not called like its module. The files
// memory_*.c and memory_private.h are memory's.
var parts = map[string]string{
	"next.c": "loader", "nvml.c": "lookup",
	"capture.c": "wrap", "context.c": "wrap", "multi.c": "wrap",
}

// shared are the headers that every file may include: types, macros, and the interfaces of
// the driver, the management library, the daemon and the kernel.
var shared = []string{"hook.h", "compat.h", "cuda.h", "descriptor.h", "nvml.h", "symver.h", "wire.h"}

// exceptions are the faults that remain, with the reason. The list may only shrink.
var exceptions = map[string]string{
	"link.c uses gf_helper of helper.c": "link starts the helper, which runs above it. The callback is bound when the library is linked, " +
		"since a constructor of another library may launch before one of this library could register it",
}

// source is a file as the check sees it.
type source struct {
	includes []string // in quotes
	text     string   // without comments
	defined  []string // of an object file: global symbols
	used     []string // and undefined ones
}

// entry matches the gated functions, which cuda.h and nvml.h declare.
var entry = regexp.MustCompile(`^gf_(cu|nvml)[A-Z]`)

// ours matches the symbols of the library that it does not export.
var ours = regexp.MustCompile(`^gf_`)

var (
	comment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	include = regexp.MustCompile(`(?m)^\s*#\s*include\s*"([^"]+)"`)
	declare = regexp.MustCompile(`(?m)^\s*extern\b`)
)

func moduleOf(file string) string {
	if m, ok := parts[file]; ok {
		return m
	}
	name := strings.TrimSuffix(file, filepath.Ext(file))
	if strings.HasPrefix(name, "memory_") {
		return "memory"
	}
	return name
}

// faults returns the violations of the rules.
func faults(files map[string]source, layers [][]string) []string {
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	height := map[string]int{}
	for i, modules := range layers {
		for _, m := range modules {
			height[m] = i
		}
	}
	mayUse := func(from, to string) bool {
		a, b := moduleOf(from), moduleOf(to)
		return a == b || height[a] > height[b]
	}
	definer := map[string]string{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		for _, symbol := range files[file].defined {
			definer[symbol] = file
		}
	}
	usedElsewhere := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		f := files[file]
		if slices.Contains(shared, file) {
			for _, h := range f.includes {
				if !slices.Contains(shared, h) && filepath.Ext(h) == ".h" {
					report("%s includes %s", file, h)
				}
			}
			continue
		}
		if _, ok := height[moduleOf(file)]; !ok {
			report("%s is of no module", file)
			continue
		}
		for _, h := range f.includes {
			private := strings.HasSuffix(h, "_private.h") && moduleOf(h) != moduleOf(file)
			if filepath.Ext(h) == ".h" && !slices.Contains(shared, h) && (private || !mayUse(file, h)) {
				report("%s includes %s", file, h)
			}
		}
		if filepath.Ext(file) == ".c" && declare.MatchString(f.text) {
			report("%s declares a symbol itself", file)
		}
		headers := reachable(files, file)
		for _, symbol := range f.used {
			from, isOurs := definer[symbol]
			if !isOurs {
				continue
			}
			usedElsewhere[symbol] = true
			if !mayUse(file, from) {
				report("%s uses %s of %s", file, symbol, from)
			}
			if !entry.MatchString(symbol) && !declared(files, headers, symbol) {
				report("%s uses %s, which no header that it includes declares", file, symbol)
			}
		}
		for _, symbol := range f.defined {
			if ours.MatchString(symbol) && !entry.MatchString(symbol) && !declared(files, headers, symbol) {
				report("%s defines %s, which no header that it includes declares", file, symbol)
			}
		}
	}
	for _, symbol := range slices.Sorted(maps.Keys(definer)) {
		if ours.MatchString(symbol) && !entry.MatchString(symbol) && !usedElsewhere[symbol] {
			report("%s defines %s, which no other file uses", definer[symbol], symbol)
		}
	}
	return found
}

// reachable returns the headers that a file includes, however deep.
func reachable(files map[string]source, file string) []string {
	var seen []string
	next := slices.Clone(files[file].includes)
	for len(next) > 0 {
		h := next[0]
		next = next[1:]
		if filepath.Ext(h) == ".h" && !slices.Contains(seen, h) {
			seen = append(seen, h)
			next = append(next, files[h].includes...)
		}
	}
	return seen
}

func declared(files map[string]source, headers []string, symbol string) bool {
	name := regexp.MustCompile(`\b` + regexp.QuoteMeta(symbol) + `\b`)
	return slices.ContainsFunc(headers, func(h string) bool { return name.MatchString(files[h].text) })
}

// read returns the sources of hook, with the symbols of the object files that it compiles.
func read(t *testing.T) map[string]source {
	t.Helper()
	compiler := strings.Fields(os.Getenv("CC"))
	if len(compiler) == 0 {
		compiler = []string{"gcc"}
	}
	names, err := filepath.Glob("../*.[ch]")
	if err != nil || len(names) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	objects := t.TempDir()
	files := make([]source, len(names))
	errs := make([]error, len(names))
	turns := make(chan struct{}, runtime.NumCPU())
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			files[i], errs[i] = readSource(compiler, name, filepath.Join(objects, filepath.Base(name)+".o"))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	byName := map[string]source{}
	for i, name := range names {
		byName[filepath.Base(name)] = files[i]
	}
	return byName
}

func readSource(compiler []string, name, object string) (source, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return source{}, err
	}
	f := source{text: comment.ReplaceAllString(string(text), " ")}
	for _, m := range include.FindAllStringSubmatch(string(text), -1) {
		f.includes = append(f.includes, m[1])
	}
	if filepath.Ext(name) != ".c" {
		return f, nil
	}
	args := append(slices.Clone(compiler[1:]), "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-c", "-o", object, name)
	out, err := exec.Command(compiler[0], args...).CombinedOutput()
	if err != nil {
		return f, fmt.Errorf("compile %s: %w\n%s", name, err, out)
	}
	out, err = exec.Command("nm", "--extern-only", "--format=posix", object).Output()
	if err != nil {
		return f, fmt.Errorf("nm %s: %w", object, err)
	}
	for line := range strings.Lines(string(out)) {
		switch fields := strings.Fields(line); {
		case len(fields) < 2:
		case fields[1] == "U":
			f.used = append(f.used, fields[0])
		default:
			f.defined = append(f.defined, fields[0])
		}
	}
	return f, nil
}

// TestOrder checks the library's sources and object files.
func TestOrder(t *testing.T) {
	files := read(t)
	symbols := 0
	for _, f := range files {
		symbols += len(f.defined)
	}
	if symbols < 500 { // there are more than 280 wrapped functions, each with an exported and a gated name
		t.Fatalf("the object files define %d symbols, want at least 500", symbols)
	}
	for _, m := range slices.Concat(layers...) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(file string) bool { return moduleOf(file) == m }) {
			t.Errorf("source files of module %s: got none, want at least one", m)
		}
	}
	seen := map[string]bool{}
	for _, fault := range faults(files, layers) {
		if exceptions[fault] == "" {
			t.Error(fault)
		}
		seen[fault] = true
	}
	for fault := range exceptions {
		if !seen[fault] {
			t.Errorf("exception %q is no longer needed: remove it", fault)
		}
	}
}

// TestFaults checks that each kind of fault is found.
func TestFaults(t *testing.T) {
	layers := [][]string{{"low"}, {"memory", "twin"}, {"high"}}
	good := func() map[string]source {
		return map[string]source{
			"hook.h":           {},
			"low.h":            {includes: []string{"hook.h"}, text: "void gf_low(void);"},
			"low.c":            {includes: []string{"low.h"}, defined: []string{"gf_low", "gf_cuInit", "cuInit"}},
			"memory.h":         {includes: []string{"low.h"}, text: "void gf_mem(void);"},
			"memory_private.h": {includes: []string{"memory.h"}, text: "void gf_block(void);"},
			"memory.c":         {includes: []string{"memory_private.h"}, defined: []string{"gf_mem"}, used: []string{"gf_low", "gf_block", "malloc"}},
			"memory_block.c":   {includes: []string{"memory_private.h"}, defined: []string{"gf_block"}},
			"twin.h":           {includes: []string{"hook.h"}, text: "void gf_twin(void);"},
			"twin.c":           {includes: []string{"twin.h"}, defined: []string{"gf_twin"}},
			"high.c":           {includes: []string{"memory.h", "twin.h", "symbols.def"}, used: []string{"gf_low", "gf_mem", "gf_twin", "gf_cuInit"}},
		}
	}
	for _, c := range []struct {
		name, file string
		change     func(*source)
		want       []string
	}{
		{"none", "hook.h", func(*source) {}, nil},
		{"include of a higher module", "low.c", func(f *source) { f.includes = append(f.includes, "memory.h") }, []string{"low.c includes memory.h"}},
		{"include in a header", "low.h", func(f *source) { f.includes = append(f.includes, "twin.h") }, []string{"low.h includes twin.h"}},
		{"include in the shared header", "hook.h", func(f *source) { f.includes = append(f.includes, "low.h") }, []string{"hook.h includes low.h"}},
		{"include in the same layer", "twin.c", func(f *source) { f.includes = append(f.includes, "memory.h") }, []string{"twin.c includes memory.h"}},
		{"private header", "high.c", func(f *source) { f.includes = append(f.includes, "memory_private.h") }, []string{"high.c includes memory_private.h"}},
		{"own declaration", "twin.c", func(f *source) { f.text = "int x;\nextern int gf_low;" }, []string{"twin.c declares a symbol itself"}},
		{"call upwards", "low.c", func(f *source) { f.used = append(f.used, "gf_twin") },
			[]string{"low.c uses gf_twin of twin.c", "low.c uses gf_twin, which no header that it includes declares"}},
		{"call without a header", "twin.c", func(f *source) { f.used = append(f.used, "gf_low") },
			[]string{"twin.c uses gf_low, which no header that it includes declares"}},
		{"definition without a header", "low.c", func(f *source) { f.defined = append(f.defined, "gf_more") },
			[]string{"low.c defines gf_more, which no header that it includes declares", "low.c defines gf_more, which no other file uses"}},
		{"unused function", "high.c", func(f *source) { f.used = f.used[:2] },
			[]string{"twin.c defines gf_twin, which no other file uses"}},
		{"file of no module", "other.c", func(*source) {}, []string{"other.c is of no module"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := good()
			f := files[c.file]
			c.change(&f)
			files[c.file] = f
			if got := faults(files, layers); !slices.Equal(got, c.want) {
				t.Errorf("faults:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
