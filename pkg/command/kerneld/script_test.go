package kerneld

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
)

// patience is how long a script waits for what must happen.
const patience = time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gfaas-kerneld": func() { os.Exit(Main()) }})
}

func TestScripts(t *testing.T) {
	lib, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs("../../../build/bin")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			run, err := os.MkdirTemp("", "run") // the script's own folder may be too long for a socket
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(run) })
			sim, err := os.MkdirTemp("/dev/shm", "kerneld")
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(sim) })
			env.Setenv("GFAAS_RUN_DIR", filepath.Join(run, "gfaas"))
			env.Setenv("GFAAS_LIB_DIR", lib)
			env.Setenv("GFAAS_SIM_DIR", sim)
			env.Setenv("GFAAS_SIM_GPU", "sms=80,mem=1GiB,count=2")
			env.Setenv("BUILD_BIN", bin)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits, "await": await, "signal": send, "floats": writeFloats, "isfloats": isFloats,
		},
	})
}

// await PROGRAM ARGS… runs a program until it succeeds; with ! until it fails.
func await(ts *testscript.TestScript, neg bool, args []string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); (clitest.Status(ts, ts.Exec(args[0], args[1:]...)) == 0) == neg; <-tick.C {
		if time.Now().After(end) {
			ts.Fatalf("%v: not within %v", args, patience)
		}
	}
}

// signal NAME sends a signal to what runs in the background.
func send(ts *testscript.TestScript, _ bool, args []string) {
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(unix.SignalNum("SIG" + args[0])))
	}
}

// floats FILE V… writes numbers of 32 bits.
func writeFloats(ts *testscript.TestScript, _ bool, args []string) {
	var out []byte
	for _, text := range args[1:] {
		v, err := strconv.ParseFloat(text, 32)
		ts.Check(err)
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out, 0o600))
}

// isfloats FILE V… holds what such a file has.
func isFloats(ts *testscript.TestScript, _ bool, args []string) {
	data := []byte(ts.ReadFile(args[0]))
	var got []string
	for ; len(data) >= 4; data = data[4:] {
		got = append(got, fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(data))))
	}
	if want := strings.Join(args[1:], " "); strings.Join(got, " ") != want {
		ts.Fatalf("%s: %v, want %s", args[0], got, want)
	}
}
