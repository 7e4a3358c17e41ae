package pkg_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// change returns the change that CONTRIBUTING.md shows under a heading.
func change(t *testing.T, heading string) string {
	t.Helper()
	page, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	change := regexp.MustCompile("(?ms)^```diff\n(.*?)^```$").FindStringSubmatch(section)
	if !found || change == nil {
		t.Fatalf("CONTRIBUTING.md shows no change under %q", heading)
	}
	return change[1]
}

// apply applies the change under a heading to a tree, or only checks with --check that it applies.
func apply(t *testing.T, tree, heading string, options ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"apply", "-"}, options...)...)
	cmd.Dir, cmd.Stdin = tree, strings.NewReader(change(t, heading))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the change under %q does not apply: %v\n%s", heading, err, text)
	}
}

// scratch returns a copy of the working tree, untracked files included, with the change
// that CONTRIBUTING.md shows under a heading. Times of files are kept and built C files are
// copied, so that make builds only what the change affects.
func scratch(t *testing.T, heading string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = ".."
	files, err := list.Output()
	if err != nil {
		t.Skipf("git does not list the tree: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		from, to := filepath.Join("..", name), filepath.Join(dir, name)
		info, err := os.Stat(from)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted, or a link to a folder
		}
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, text, info.Mode().Perm())
		}
		if err == nil {
			err = os.Chtimes(to, time.Time{}, info.ModTime())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, built := range []string{"obj", "lib", "check"} {
		if from := filepath.Join("../build", built); isDir(from) {
			in(t, ".", "mkdir", "-p", filepath.Join(dir, "build"))
			in(t, ".", "cp", "-a", from, filepath.Join(dir, "build"))
		}
	}
	apply(t, dir, heading)
	return dir
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// in runs a command in a folder and returns its output. It fails the test if the command
// fails.
func in(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return string(text)
}

// contributed returns a copy of the tree with the change under a heading. Because the
// tests build programs, it only checks that the change applies, and skips the test, unless
// make contributing-check runs it.
func contributed(t *testing.T, heading string) (dir string) {
	t.Helper()
	if os.Getenv("GFAAS_CONTRIBUTING") == "" {
		apply(t, "..", heading, "--check")
		t.Skip("GFAAS_CONTRIBUTING is not set: make contributing-check sets it")
	}
	return scratch(t, heading)
}

// TestContributingPolicy: the policy that CONTRIBUTING.md adds passes the tests of all
// policies, in the simulator and in the gateway, and the commands offer it.
func TestContributingPolicy(t *testing.T) {
	dir := contributed(t, "Add a queueing policy")
	ran := in(t, dir, "go", "test", "-vet=off", "-ldflags=-w", "-v", "./pkg/policy/queue", "./pkg/sim", "./pkg/daemon/gateway", "-run", "/srpt$")
	for _, test := range []string{"TestRecordReplays/srpt"} {
		if !strings.Contains(ran, "--- PASS: "+test) {
			t.Errorf("%s did not run:\n%s", test, ran)
		}
	}
	sim := filepath.Join(t.TempDir(), "gfaas-sim")
	in(t, dir, "go", "build", "-ldflags=-w", "-o", sim, "./cmd/gfaas-sim")
	in(t, dir, sim, "generate", "mqfq", "-q", "--costs-out", "costs.csv", "--out-file", "trace.csv")
	table := in(t, dir, sim, "compare", "-q", "--functions", "costs.csv", "--trace", "trace.csv", "--pool", "8", "--policy", "sjf,srpt", "-o", "csv")
	if lines := strings.Split(strings.TrimSpace(table), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[2], "srpt,") {
		t.Errorf("compare: want three lines, the last one of srpt, got\n%s", table)
	}
	if help := in(t, dir, sim, "queue", "--help"); !strings.Contains(help, "srpt          the shortest invocation, its start included") {
		t.Errorf("the help of queue does not list srpt:\n%s", help)
	}
}

// TestContributingFlag: the flag that CONTRIBUTING.md adds reaches the library.
func TestContributingFlag(t *testing.T) {
	dir := contributed(t, "Add a flag of gfaas run that reaches the preload library")
	in(t, dir, "make", "-s", "libs", "build/bin/gfaas", "build/bin/gfaas-tokend", "build/check/visible")
	t.Setenv("GFAAS_RUN_DIR", t.TempDir())
	run := []string{"build/bin/gfaas", "run", "-q", "--gpu", "sim", "--", "build/check/visible", "CUDA_VISIBLE_DEVICES=7"}
	if said := in(t, dir, run...); !strings.Contains(said, "libgfaas: CUDA_VISIBLE_DEVICES=7") {
		t.Errorf("without the flag: %q, want a message", said)
	}
	if said := in(t, dir, slices.Insert(run, 5, "--no-messages")...); said != "cuInit 100\n" {
		t.Errorf("with --no-messages: %q, want no message", said)
	}
}

// TestContributingDriver: the driver function that CONTRIBUTING.md adds passes its
// checks, and the tables of the library contain it.
func TestContributingDriver(t *testing.T) {
	dir := contributed(t, "Add a function of the CUDA driver")
	targets := []string{"make", "-s", "libs", "build/bin/gfaas-tokend", "build/check/lookup", "build/check/plugin/hidden.so", "build/check/stubs"}
	checks, err := filepath.Glob("../hook/sim/check/sim_*.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range checks { // for TestConformance
		targets = append(targets, "build/check/"+strings.TrimSuffix(filepath.Base(check), ".c"))
	}
	in(t, dir, targets...)
	in(t, dir, "go", "test", "-vet=off", "-ldflags=-w", "./hook/sim/simtest", "-run", "^(TestConformance|TestStubs)$")
	in(t, dir, "go", "test", "-vet=off", "-ldflags=-w", "./hook/hooktest", "-run", "^TestLookup$")
}
