package gfaas

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
	"github.com/gfaas/gfaas/pkg/command/modeld"
	planner "github.com/gfaas/gfaas/pkg/command/place"
	"github.com/gfaas/gfaas/pkg/command/profile"
	"github.com/gfaas/gfaas/pkg/command/sim"
	"github.com/gfaas/gfaas/pkg/command/tokend"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/safetensors"
)

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){
		"gfaas":         func() { os.Exit(Main()) },
		"gfaas-modeld":  func() { os.Exit(modeld.Main()) },
		"gfaas-tokend":  func() { os.Exit(tokend.Main()) },
		"gfaas-place":   func() { os.Exit(planner.Main()) },
		"gfaas-profile": func() { os.Exit(profile.Main()) },
		"gfaas-sim":     func() { os.Exit(sim.Main()) },
		"escape":        escape,
		"await":         awaitSuccess,
	})
}

// world holds the programs and libraries for commands in a test. environ adds a run directory and a state file.
type world struct {
	function string // a dynamically linked HTTP function
	static   string // a statically linked program; empty if the compiler cannot build one
	libDir   string
}

// compiled holds the products of compile for all tests, in a folder that Run removes.
var compiled struct {
	once sync.Once
	dir  string
	world
}

type tests struct{ *testing.M }

// Run implements testscript.TestingM.
func (m tests) Run() int {
	defer func() { _ = os.RemoveAll(compiled.dir) }()
	return m.M.Run()
}

// build compiles the programs for the commands, once. Each test has its own path for the function, because tests count the
// function's processes by path. The libraries are stand-ins; other tests cover the real ones.
func build(t *testing.T) world {
	t.Helper()
	compiled.once.Do(func() { compile(t) })
	w := compiled.world
	w.function = filepath.Join(t.TempDir(), "function")
	if err := os.Link(compiled.function, w.function); err != nil {
		t.Fatal(err)
	}
	return w
}

func compile(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gfaas-test")
	if err != nil {
		t.Fatal(err)
	}
	compiled.dir = dir
	source, err := os.ReadFile("testdata/function.c")
	if err != nil {
		t.Fatal(err)
	}
	compiled.world = world{function: filepath.Join(dir, "function"), static: filepath.Join(dir, "static"), libDir: dir}
	instancetest.Compile(t, compiled.function, source, "-O1")
	instancetest.Compile(t, compiled.static, []byte("int main(void) { return 0; }"), "-static", "-nostdlib", "-e", "main")
	instancetest.BuildLibsIn(t, dir)
}

// environ returns the environment of commands in a folder, without PATH.
func (w world) environ(dir string) []string {
	return []string{
		"GFAAS_LIB_DIR=" + w.libDir, "GFAAS_RUN_DIR=" + filepath.Join(dir, "run"), "GFAAS_STATE=" + filepath.Join(dir, "state.db"),
		"GFAAS_SIM_DIR=" + filepath.Join(dir, "sim"),
		"FUNCTION=" + w.function, "STATIC=" + w.static, "GFAAS_SIM_GPU=", "HOME=" + dir, "XDG_CONFIG_HOME=" + dir,
		"DOCKER_HOST=unix://" + filepath.Join(dir, "no-docker.sock"),
	}
}

// down stops the instances that a test has left running.
func down(env []string) {
	cmd := exec.Command("gfaas", "down")
	cmd.Env = append(os.Environ(), env...)
	_ = cmd.Run()
}

func TestScripts(t *testing.T) {
	t.Parallel()
	w := build(t)
	libs, err := filepath.Abs("../../../build/lib") // built by make
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Files:               scripts(t),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			// Scripts run in parallel and search for their own processes by path.
			own := w
			own.function = filepath.Join(env.WorkDir, ".function")
			if err := os.Link(w.function, own.function); err != nil {
				return err
			}
			vars := append(own.environ(env.WorkDir), "REAL_LIB_DIR="+libs, "SAXPY="+filepath.Join(libs, "..", "examples", "saxpy", "saxpy"),
				"LOOP="+filepath.Join(libs, "..", "victim", "loop"))
			env.Vars = append(env.Vars, vars...)
			env.Defer(func() { down(vars) })
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits, "lock": lock, "model": model, "eventually": awaitOutput},
	})
}

// scripts returns the files of the scripts. With -short, which make race uses, these are the scripts that run a gateway:
// other commands start few goroutines, whose packages have their own tests.
func scripts(t *testing.T) (files []string) {
	all, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !testing.Short() || strings.Contains(string(text), "gfaas serve") {
			files = append(files, file)
		}
	}
	return files
}

// model implements the script command model FILE KIB, which writes a model of that size.
func model(ts *testscript.TestScript, _ bool, args []string) {
	kib, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	text, err := safetensors.AppendHeader(nil, []safetensors.Tensor{{Name: "w", DType: "F16", Shape: []int64{kib, 512}, Bytes: kib << 10}}, nil)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), append(text, make([]byte, kib<<10)...), 0o600))
}

// awaitOutput implements the script command eventually PATTERN PROGRAM ARGS…, which runs a program until its output on
// either stream matches.
func awaitOutput(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[0])
	printed := poll(func() bool {
		_ = ts.Exec(args[1], args[2:]...)
		return pattern.MatchString(ts.ReadFile("stdout") + ts.ReadFile("stderr"))
	})
	if !printed {
		ts.Fatalf("timed out: %v prints %s", args[1:], args[0])
	}
}

// awaitSuccess implements the program await COMMAND, which runs a shell command until it succeeds.
func awaitSuccess() {
	var text []byte
	var err error
	succeeded := poll(func() bool {
		text, err = exec.Command("sh", "-c", os.Args[1]).CombinedOutput()
		return err == nil
	})
	if !succeeded {
		fmt.Fprintf(os.Stderr, "await %s: %v\n%s", os.Args[1], err, text)
		os.Exit(1)
	}
}

// lock implements the script command lock FILE, which locks a file until the script ends.
func lock(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: lock FILE")
	}
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_CREATE|os.O_RDWR, 0o600)
	ts.Check(err)
	ts.Defer(func() { _ = f.Close() })
	ts.Check(syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
}
