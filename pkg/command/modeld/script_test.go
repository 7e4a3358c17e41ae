package modeld

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
	"github.com/gfaas/gfaas/pkg/safetensors"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// patience is how long a script waits for a required event.
const patience = time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gfaas-modeld": func() { os.Exit(Main()) }, "model-instance": instanceMain})
}

func TestScripts(t *testing.T) {
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			run, err := os.MkdirTemp("", "run") // the path of the script's own folder may be too long for a socket
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(run) })
			env.Values[clitest.Systemd{}] = &clitest.Systemd{}
			for name, value := range map[string]string{
				"GFAAS_RUN_DIR": filepath.Join(run, "gfaas"), "GFAAS_STATE": filepath.Join(env.WorkDir, "state.db"),
				"GFAAS_LIB_DIR": libs, "GFAAS_SIM_DIR": filepath.Join(run, "sim"), "XDG_CONFIG_HOME": filepath.Join(env.WorkDir, "config"),
			} {
				env.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits, "model": makeModel, "await": clitest.Await, "signal": clitest.Signal, "notify": clitest.Notify, "notified": clitest.Notified, "stalled": stalled,
		},
	})
}

// model FILE SEED KIB… writes a model with tensors of the given sizes.
func makeModel(ts *testscript.TestScript, _ bool, args []string) {
	seed, err := strconv.ParseUint(args[1], 10, 64)
	ts.Check(err)
	var tensors []safetensors.Tensor
	total := int64(0)
	for i, kib := range args[2:] {
		n, err := strconv.ParseInt(kib, 10, 64)
		ts.Check(err)
		tensors = append(tensors, safetensors.Tensor{Name: fmt.Sprint("t", args[1], ".", i), DType: "F16", Shape: []int64{n, 512}, Bytes: n << 10})
		total += n << 10
	}
	text, err := safetensors.AppendHeader(nil, tensors, map[string]string{"format": "pt"})
	ts.Check(err)
	data := make([]byte, total)
	from := splitmix.Source(seed)
	for i := range data {
		data[i] = byte(from.Uint64())
	}
	text = append(text, data...)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
}

// stalled SIGNAL ARGS… makes gfaas-modeld write to a pipe without a reader, and checks that a signal ends it.
func stalled(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.Command("gfaas-modeld", args[1:]...)
	cmd.Env = os.Environ()
	for _, name := range []string{"GFAAS_RUN_DIR", "XDG_CONFIG_HOME"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	from, to, err := os.Pipe()
	ts.Check(err)
	defer from.Close()
	cmd.Stdout = to
	ts.Check(cmd.Start())
	_ = to.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	_, err = io.ReadFull(from, make([]byte, 1)) // the program has started to fill the pipe
	ts.Check(err)
	sig := unix.SignalNum("SIG" + args[0])
	ts.Check(cmd.Process.Signal(sig))
	select {
	case err := <-ended:
		if got := clitest.Status(ts, err); got != 128+int(sig) {
			ts.Fatalf("%v: exit status %d, want %d", args, got, 128+int(sig))
		}
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		ts.Fatalf("%v: SIG%s did not end gfaas-modeld within %v, want its end", args, args[0], patience)
	}
}
