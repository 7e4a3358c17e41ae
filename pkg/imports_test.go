// Package pkg_test checks properties of the whole source tree.
package pkg_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/gfaas/gfaas/pkg/"

// layers lists, for each folder of pkg, the other folders that its packages may import:
// gpu ← formats ← policy ← {daemon, sim, measure, rollout} ← command. Adapters and launch
// may import only gpu, formats and wire. Daemons, use cases (measure, rollout), adapters
// and commands may also import the folders in machine. The checks of doctor may import
// adapters, and use cases may import load.
var (
	machine = []string{"procfs", "lockfile", "owndir"} // Linux facilities
	formats = []string{"gpu", "function", "grant", "profile", "plan", "trace", "kgraph", "kserve", "events", "instance", "wire", "csvfile", "jsonfile", "textfile", "yamlfile", "safetensors", "splitmix", "number", "reason", "status", "lists"}
	layers  = map[string][]string{
		"gpu":        {"gpu"},
		"procfs":     {},
		"lockfile":   {},
		"owndir":     {},
		"outfile":    {},
		"transcript": {},
		"policy":     append([]string{"policy"}, formats...),
		"record":     append([]string{"policy"}, formats...),
		"load":       {"gpu", "load", "number", "splitmix"},
		"daemon":     slices.Concat([]string{"daemon", "launch", "policy", "record"}, formats, machine),
		"rollout":    slices.Concat([]string{"rollout", "launch", "load", "policy", "record"}, formats, machine),
		"measure":    slices.Concat([]string{"measure", "launch", "load", "policy", "record", "outfile"}, formats, machine),
		"doctor":     slices.Concat([]string{"doctor", "adapter"}, formats, machine),
		"sim":        append([]string{"sim", "policy", "record"}, formats...),
		"adapter":    slices.Concat([]string{"adapter"}, formats, machine),
		"command":    slices.Concat([]string{"command", "adapter", "daemon", "launch", "policy", "record", "sim", "load", "measure", "rollout", "doctor", "outfile"}, formats, machine),
	}
)

type pkgInfo struct {
	ImportPath string
	Dir        string
	Standard   bool
	GoFiles    []string
	CgoFiles   []string
	Imports    []string

	uses []name // for packages that a test makes up
}

// name is an identifier of another package, such as time.Now. It is * if a file imports
// all names of the package with a dot, and goroutine stands for a go statement.
type name struct{ from, what string }

var goroutine = name{what: "go"}

func TestImportDirection(t *testing.T) {
	for _, p := range list(t) {
		from := layer(p.ImportPath)
		if from == "" {
			continue
		}
		allowed, special := layers[from]
		if !special {
			allowed = formats
		}
		for _, imported := range p.Imports {
			to := layer(imported)
			if to != "" && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: %s may import only %v", p.ImportPath, imported, from, allowed)
			}
		}
	}
}

// gatewayLayers lists, for each package below daemon/gateway, the others that it may
// import: api → proxy → dispatch ← instances. The gateway itself imports all of them.
var gatewayLayers = map[string][]string{
	"refusal":   {},
	"ollama":    {},
	"ui":        {},
	"fields":    {},
	"metrics":   {"refusal"},
	"dispatch":  {"metrics", "refusal"},
	"instances": {"dispatch"},
	"inbound":   {"refusal"},
	"proxy":     {"dispatch", "fields", "inbound", "refusal"},
	"api":       {"dispatch", "fields", "inbound", "metrics", "ollama", "proxy", "refusal", "ui"},
}

// TestGatewayLayers: the packages of the gateway import each other in one direction, and
// the dispatcher sends and serves no HTTP.
func TestGatewayLayers(t *testing.T) {
	const root = module + "daemon/gateway"
	for _, p := range list(t) {
		from, below := strings.CutPrefix(p.ImportPath, root+"/")
		if !below {
			continue
		}
		allowed, known := gatewayLayers[from]
		if !known {
			t.Errorf("%s is missing in gatewayLayers", p.ImportPath)
		}
		for _, imported := range p.Imports {
			to, below := strings.CutPrefix(imported, root+"/")
			if imported == root || below && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: it may import only %v of the gateway", p.ImportPath, imported, allowed)
			}
			if from == "dispatch" && (imported == "net" || strings.HasPrefix(imported, "net/")) {
				t.Errorf("%s imports %s: the dispatcher must not send or serve", p.ImportPath, imported)
			}
		}
	}
}

// TestOnlyCommandsKnowFlags: only commands import the command-line libraries, so that a
// use case can be called from any program and prints nothing by itself.
func TestOnlyCommandsKnowFlags(t *testing.T) {
	commandLine := regexp.MustCompile(`^github\.com/(spf13/|olekukonko/tablewriter|schollz/progressbar)`)
	for _, p := range list(t) {
		if from := layer(p.ImportPath); from == "" || from == "command" {
			continue
		}
		for _, imported := range p.Imports {
			if commandLine.MatchString(imported) {
				t.Errorf("%s imports %s: only commands may import it", p.ImportPath, imported)
			}
		}
	}
}

// The parts of the standard library that rule 1 of the design allows in policies. All
// other packages are refused.
var (
	// computing lists packages for policies. They cannot read, write, wait or guess.
	computing = []string{
		"bytes", "cmp", "container/heap", "container/list", "encoding/binary", "errors", "fmt", "iter", "maps", "math", "math/bits",
		"slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8",
	}
	// parsing lists further packages, for the formats that define a policy's types and
	// for the libraries that these formats use. The packages read from an io.Reader that
	// a command has opened and open no files themselves.
	parsing = append([]string{
		"bufio", "encoding", "encoding/base64", "encoding/csv", "encoding/json", "io", "path/filepath", "reflect", "regexp", "sync",
	}, computing...)
	// restricted reports which names of the packages on these lists are forbidden: the
	// clock, the standard streams, and functions that query the file system.
	restricted = map[string]func(name string) bool{
		"time": among("Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation"),
		"fmt":  among("Print", "Printf", "Println", "Scan", "Scanf", "Scanln"),
		"path/filepath": func(name string) bool {
			return !among("Base", "Clean", "Dir", "Ext", "IsAbs", "Join")(name)
		},
	}
	// excused lists forbidden names that a library uses without effect.
	excused = map[string]name{"go.yaml.in/yaml/v3": {"fmt", "Println"}} // in a trace function of its scanner that is never called
)

func among(names ...string) func(name string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// differing lists the packages that need a different random value each time; workload
// keeps the generator of its published traces. All other random values are derived from a
// seed by pkg/splitmix.
var differing = []string{"adapter/localport", "command/gfaas", "daemon/token", "sim/workload"}

func TestOneRandomSource(t *testing.T) {
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		drawn := slices.ContainsFunc(p.Imports, func(path string) bool { return strings.HasPrefix(path, "math/rand") })
		if ours && drawn && !slices.Contains(differing, name) {
			t.Errorf("%s draws by math/rand, want pkg/splitmix", p.ImportPath)
		}
	}
}

// TestDaemonsStartNothing: the daemons for GPUs, models and kernel graphs start no
// instances. They therefore do not link Docker's client, which would account for a fifth
// of the program.
func TestDaemonsStartNothing(t *testing.T) {
	packages := list(t)
	for _, daemon := range []string{"tokend", "modeld", "kerneld"} {
		next := []string{module + "command/" + daemon}
		for seen := map[string]bool{}; len(next) > 0; next = next[1:] {
			if p := packages[next[0]]; !seen[p.ImportPath] {
				seen[p.ImportPath] = true
				next = append(next, p.Imports...)
			}
			if next[0] == module+"adapter/docker" {
				t.Errorf("%s imports %s, directly or indirectly", daemon, next[0])
			}
		}
	}
}

// TestPoliciesArePure checks rule 1 of the design: neither a policy nor any package that
// it imports, directly or indirectly, does I/O, reads the clock or uses random numbers.
func TestPoliciesArePure(t *testing.T) {
	for _, fault := range impurities(list(t), func(p pkgInfo) []name { return usesOf(t, p) }) {
		t.Error(fault)
	}
}

// TestOneAfterAnother checks the packages, apart from policies, that make race leaves
// out. They, their tests and the packages of this module that they import start no
// goroutine, so the race detector has no use there. Exempt are the packages in
// seen, whose own tests make race runs.
func TestOneAfterAnother(t *testing.T) {
	packages := list(t)
	seen := map[string]bool{module + "command/cli": true, module + "adapter/preload": true,
		module + "launch": true, module + "rollout": true}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	sequential := regexp.MustCompile(`(?m)^SEQUENTIAL := (.*)$`).FindSubmatch(makefile)
	if sequential == nil {
		t.Fatal("the Makefile has no line SEQUENTIAL, which lists the packages that make race leaves out")
	}
	leftOut := regexp.MustCompile(`/pkg/(` + string(sequential[1]) + `)(/|$)`)
	var next []string
	for at := range packages {
		if leftOut.MatchString(at) && layer(at) != "policy" {
			next = append(next, at)
		}
	}
	if len(next) < 6 {
		t.Fatalf("make race leaves out %v, want at least 6 packages besides policies", next)
	}
	for _, at := range next {
		tests, err := filepath.Glob(filepath.Join(packages[at].Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range tests {
			if slices.Contains(usesIn(t, file, nil), goroutine) {
				t.Errorf("%s starts a goroutine, and make race leaves it out", file)
			}
		}
	}
	for len(next) > 0 {
		p := packages[next[0]]
		next = next[1:]
		if seen[p.ImportPath] {
			continue
		}
		seen[p.ImportPath] = true
		used := usesOf(t, p)
		if slices.Contains(used, goroutine) || slices.Contains(used, name{"sync", "WaitGroup"}) {
			t.Errorf("%s starts a goroutine, and make race leaves out what imports it", p.ImportPath)
		}
		for _, imported := range p.Imports {
			if imported == "golang.org/x/sync/errgroup" {
				t.Errorf("%s imports %s, and make race leaves out what imports it", p.ImportPath, imported)
			}
			if layer(imported) != "" {
				next = append(next, imported)
			}
		}
	}
}

// impurities returns the violations of rule 1 in policies and in the packages that they
// import.
func impurities(packages map[string]pkgInfo, uses func(pkgInfo) []name) (faults []string) {
	way := map[string]string{} // the chain of imports by which a policy reaches a package
	var next []string
	for _, at := range slices.Sorted(maps.Keys(packages)) {
		if layer(at) == "policy" {
			way[at] = at
			next = append(next, at)
		}
	}
	for len(next) > 0 {
		p := packages[next[0]]
		next = next[1:]
		policy := layer(p.ImportPath) == "policy"
		allowed := parsing
		if policy {
			allowed = computing
		}
		tell := func(what, why string) {
			faults = append(faults, fmt.Sprintf("%s %s: %s", way[p.ImportPath], what, why))
		}
		for _, imported := range p.Imports {
			switch _, seen := way[imported]; {
			case packages[imported].Standard || imported == "C" || imported == "unsafe":
				if !slices.Contains(allowed, imported) {
					tell("imports "+imported, "it is not on the list of packages that do no I/O")
				}
			case policy && layer(imported) == "":
				tell("imports "+imported, "a policy imports the standard library and value types only")
			case !seen:
				way[imported] = way[p.ImportPath] + " imports " + imported
				next = append(next, imported)
			}
		}
		for _, n := range uses(p) {
			if policy && n == goroutine {
				tell("starts a goroutine", "policies run in one goroutine, and the race detector does not check their tests")
			}
			if not := restricted[n.from]; not != nil && (n.what == "*" || not(n.what)) && n != excused[p.ImportPath] {
				tell("uses "+n.from+"."+n.what, "time is an argument, a timer is an action, and nothing is read or written")
			}
		}
	}
	return faults
}

// usesOf returns the names of other packages that the files of a package use.
func usesOf(t *testing.T, p pkgInfo) (names []name) {
	t.Helper()
	for _, file := range append(p.GoFiles, p.CgoFiles...) {
		for _, n := range usesIn(t, filepath.Join(p.Dir, file), nil) {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}

// usesIn is usesOf for one file. text is the content of the file, or nil to read it.
// usesIn matches the names of imports, so no variable may have the name of an import.
func usesIn(t *testing.T, file string, text any) (names []name) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]string{}
	for _, spec := range f.Imports {
		from, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case spec.Name == nil:
			called[path.Base(from)] = from
		case spec.Name.Name == ".":
			names = append(names, name{from, "*"})
		default:
			called[spec.Name.Name] = from
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			names = append(names, goroutine)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && called[x.Name] != "" {
				names = append(names, name{called[x.Name], n.Sel.Name})
			}
		}
		return true
	})
	return names
}

// TestImpurities: impurities finds a violation of rule 1 in a policy, a format or a
// library.
func TestImpurities(t *testing.T) {
	const policy, format, library = module + "policy/p", module + "plan", "example.com/library"
	std := func(imported ...string) []string { return append([]string{"fmt", "math", "time"}, imported...) }
	for what, c := range map[string]struct {
		policy, format, library pkgInfo
		want                    string // prefix of the only violation, or empty if there is none
	}{
		"pure": {policy: pkgInfo{Imports: std(format), uses: []name{{"time", "Duration"}, {"fmt", "Sprintf"}}},
			format: pkgInfo{Imports: std("io", "path/filepath", library), uses: []name{{"path/filepath", "Dir"}}}, library: pkgInfo{Imports: std("sync")}},
		"not reached":        {policy: pkgInfo{Imports: std()}, format: pkgInfo{Imports: std("os", library), uses: []name{{"time", "Now"}}}, library: pkgInfo{Imports: std("net")}},
		"os":                 {policy: pkgInfo{Imports: std("os")}, want: policy + " imports os: "},
		"net/http":           {policy: pkgInfo{Imports: std("net/http")}, want: policy + " imports net/http: "},
		"math/rand/v2":       {policy: pkgInfo{Imports: std("math/rand/v2")}, want: policy + " imports math/rand/v2: "},
		"cgo":                {policy: pkgInfo{Imports: std("C")}, want: policy + " imports C: "},
		"io is for formats":  {policy: pkgInfo{Imports: std("io")}, want: policy + " imports io: "},
		"a library":          {policy: pkgInfo{Imports: std(library)}, want: policy + " imports " + library + ": "},
		"os in a format":     {policy: pkgInfo{Imports: std(format)}, format: pkgInfo{Imports: std("os")}, want: policy + " imports " + format + " imports os: "},
		"net in a library":   {policy: pkgInfo{Imports: std(format)}, format: pkgInfo{Imports: std(library)}, library: pkgInfo{Imports: std("net")}, want: policy + " imports " + format + " imports " + library + " imports net: "},
		"time.Now":           {policy: pkgInfo{uses: []name{{"time", "Now"}}}, want: policy + " uses time.Now: "},
		"fmt.Println":        {policy: pkgInfo{uses: []name{{"fmt", "Println"}}}, want: policy + " uses fmt.Println: "},
		"a goroutine":        {policy: pkgInfo{uses: []name{goroutine}}, want: policy + " starts a goroutine: "},
		"all of time":        {policy: pkgInfo{uses: []name{{"time", "*"}}}, want: policy + " uses time.*: "},
		"a format's clock":   {policy: pkgInfo{Imports: std(format)}, format: pkgInfo{uses: []name{{"time", "Since"}}}, want: policy + " imports " + format + " uses time.Since: "},
		"a format's folders": {policy: pkgInfo{Imports: std(format)}, format: pkgInfo{uses: []name{{"path/filepath", "Glob"}}}, want: policy + " imports " + format + " uses path/filepath.Glob: "},
	} {
		t.Run(what, func(t *testing.T) {
			packages := map[string]pkgInfo{policy: c.policy, format: c.format, library: c.library}
			for path, p := range packages {
				p.ImportPath = path
				packages[path] = p
				for _, imported := range p.Imports {
					if _, ours := packages[imported]; !ours {
						packages[imported] = pkgInfo{ImportPath: imported, Standard: true}
					}
				}
			}
			faults := impurities(packages, func(p pkgInfo) []name { return p.uses })
			if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.HasPrefix(faults[0], c.want)) {
				t.Errorf("%q, want %q", faults, c.want)
			}
		})
	}
}

// TestUses: usesIn finds a use under any name that a file gives the package.
func TestUses(t *testing.T) {
	const text = `package p
import (
	"time"
	clock "time"
	. "math"
	"os"
)
type own struct{ Now int }
var now, begin = clock.Now, time.Time{}
func f(o own) int { defer func() { go time.AfterFunc(0, nil) }(); return o.Now }
`
	got := usesIn(t, "p.go", text)
	for _, want := range []name{{"time", "Now"}, {"time", "Time"}, {"time", "AfterFunc"}, {"math", "*"}, goroutine} {
		if !slices.Contains(got, want) {
			t.Errorf("%v is not among %v", want, got)
		}
	}
	if len(got) != 5 {
		t.Errorf("%v, want five", got)
	}
}

// layer returns the folder of pkg that contains an import path, or "" for a path of
// another module.
func layer(path string) string {
	rest, ours := strings.CutPrefix(path, module)
	if !ours {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

// list returns all packages of this module and their dependencies, by import path.
func list(t *testing.T) map[string]pkgInfo {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,CgoFiles,Imports", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]pkgInfo{}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkgInfo
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}
