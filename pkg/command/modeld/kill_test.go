package modeld

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/safetensors"
	"github.com/gfaas/gfaas/pkg/splitmix"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// instanceMain is a program that holds the model NAME, loaded from FILE if necessary, and reads it repeatedly until
// it is killed. It exits with status 3 if a byte is wrong.
func instanceMain() {
	if err := holdModel(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func holdModel(name, path string) error {
	ctx := context.Background()
	on, err := cuda.Open(filepath.Join(os.Getenv("GFAAS_LIB_DIR"), "sim", cuda.Library), gpu.Device{Simulated: true})
	if err != nil {
		return err
	}
	stage, err := on.Stage(gpu.MiB)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	var a wire.Answer
	var files []*os.File
	var client *modeld.Client
	for { // retry: the daemon may be killed at any time
		client, err = modeld.Dial(ctx, modeld.Socket(os.Getenv("GFAAS_RUN_DIR")))
		if err == nil {
			a, files, err = client.Call(ctx, wire.Request{Op: wire.OpGet, Name: name, Source: path, TimeoutMS: time.Hour.Milliseconds()}, file)
		}
		if err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	defer client.Close() // keeps the connection, which holds the model, from being garbage-collected
	memory, err := on.Import(files[0], gpu.Bytes(a.Size))
	if err != nil {
		return err
	}
	places, metadata, err := wire.ParseManifest(files[1], a.Size)
	if err != nil {
		return err
	}
	for {
		sum := sha256.New()
		for at := places[0].Offset; at < places[0].Bytes; {
			n := int(min(places[0].Bytes-at, int64(len(stage.Buffer()))))
			if err := stage.Down(memory, gpu.Bytes(at), n); err != nil {
				return err
			}
			if err := stage.Wait(); err != nil {
				return err
			}
			sum.Write(stage.Buffer()[:n])
			at += int64(n)
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != metadata["sum"] || len(places) != 1 {
			return fmt.Errorf("BAD: the bytes have the sum %s, the model's is %s", got, metadata["sum"])
		}
		fmt.Println("good")
		time.Sleep(10 * time.Millisecond)
	}
}

// soak holds the daemon, the instances and the state of the test that kills them.
type soak struct {
	t         *testing.T
	env       []string
	dir       string
	draw      splitmix.Source
	daemon    *exec.Cmd
	instances []*exec.Cmd
	outputs   map[*exec.Cmd]*output
	good      int // instances that have read their model without errors
}

// output collects a program's output.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) contains(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text.Bytes(), []byte(text))
}

func (s *soak) start(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	out := &output{}
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, out, out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.outputs[cmd] = out
	return cmd
}

// kill kills a program and checks that it has run without errors.
func (s *soak) kill(cmd *exec.Cmd) {
	s.t.Helper()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if out := s.outputs[cmd]; out.contains("BAD") || cmd.ProcessState.ExitCode() != -1 {
		s.t.Errorf("%v: got the status %v, want that of a kill: %s", cmd.Args, cmd.ProcessState, &out.text)
	}
	if s.outputs[cmd].contains("good") {
		s.good++
	}
	delete(s.outputs, cmd)
}

func (s *soak) startDaemon() {
	s.daemon = s.start("gfaas-modeld", "--gpu", "sim", "--capacity", "24MiB")
}

// model writes a model file of the given name, with new content on each call.
func (s *soak) model(name string) string {
	s.t.Helper()
	data := make([]byte, 2<<20+s.draw.Below(4<<20))
	for i := 0; i+8 <= len(data); i += 8 {
		v := s.draw.Uint64()
		for j := range 8 {
			data[i+j] = byte(v >> (8 * j))
		}
	}
	sum := sha256.Sum256(data)
	text, err := safetensors.AppendHeader(nil,
		[]safetensors.Tensor{{Name: "w", DType: "U8", Shape: []int64{int64(len(data))}, Bytes: int64(len(data))}},
		map[string]string{"sum": hex.EncodeToString(sum[:])})
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", append(text, data...), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// mustCall sends a request until the daemon answers.
func (s *soak) mustCall(r wire.Request, files ...*os.File) wire.Answer {
	s.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var c *modeld.Client
		if c, err = modeld.Dial(s.t.Context(), filepath.Join(s.dir, "run", "model.sock")); err != nil {
			continue
		}
		var a wire.Answer
		a, _, err = c.Call(s.t.Context(), r, files...)
		_ = c.Close()
		if err == nil {
			return a
		}
	}
	s.t.Fatalf("request %+v: %v", r, err)
	return wire.Answer{}
}

// TestKills kills the daemon and instances at random times. No instance may read a wrong byte, and nothing may remain
// at the end. GFAAS_KILLS sets the number of kills (default 40).
func TestKills(t *testing.T) {
	kills := 40
	if n, err := strconv.Atoi(os.Getenv("GFAAS_KILLS")); err == nil {
		kills = n
	}
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "kills")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sim := filepath.Join(dir, "sim")
	if err := os.Mkdir(sim, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, dir: dir, draw: splitmix.Source(1), outputs: map[*exec.Cmd]*output{}}
	s.env = append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_STATE="+filepath.Join(dir, "state.db"),
		"GFAAS_LIB_DIR="+libs, "GFAAS_SIM_DIR="+sim, "GFAAS_SIM_GPU=mem=1GiB", "XDG_CONFIG_HOME="+dir)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		s.model(name)
	}
	s.startDaemon()
	t.Cleanup(func() {
		for cmd := range s.outputs {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	for killed := 0; killed < kills; {
		switch s.draw.Below(8) {
		case 0, 1, 2:
			if len(s.instances) < 6 {
				name := names[s.draw.Below(len(names))]
				s.instances = append(s.instances, s.start("model-instance", name, filepath.Join(dir, name)))
			}
		case 3:
			// Put new content. Loaded instances continue with the old content.
			name := names[s.draw.Below(len(names))]
			f, err := os.Open(s.model(name))
			if err != nil {
				t.Fatal(err)
			}
			put := wire.Request{Op: wire.OpPut, Name: name, Source: filepath.Join(dir, name), TimeoutMS: 1}
			if c, err := modeld.Dial(t.Context(), filepath.Join(dir, "run", "model.sock")); err == nil {
				_, _, _ = c.Call(t.Context(), put, f) // an error is possible: there may be no room for another generation
				_ = c.Close()
			}
			_ = f.Close()
		case 4:
			s.kill(s.daemon)
			killed++
			s.startDaemon()
		default:
			if len(s.instances) > 0 {
				at := s.draw.Below(len(s.instances))
				s.kill(s.instances[at])
				killed++
				s.instances = append(s.instances[:at], s.instances[at+1:]...)
			}
		}
		time.Sleep(time.Duration(s.draw.Below(30)) * time.Millisecond)
	}
	for _, cmd := range s.instances {
		s.kill(cmd)
	}
	for end := time.Now().Add(patience); s.mustCall(wire.Request{Op: wire.OpStat}).Daemon.Refs > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("models are in use %v after all instances were killed, want none", patience)
		}
	}
	for _, m := range modelsAt(t, filepath.Join(dir, "run", "model.sock")) {
		s.mustCall(wire.Request{Op: wire.OpRemove, Name: m.Name})
	}
	if remaining := s.mustCall(wire.Request{Op: wire.OpStat}).Daemon; remaining.Used != 0 || remaining.Models != 0 {
		t.Errorf("daemon after the removal of all models: got %+v, want no model and no memory", remaining)
	}
	t.Logf("%d kills; %d instances had read their model", kills, s.good)
	if s.good == 0 {
		t.Error("instances that have read their model: got 0, want at least 1")
	}
	s.kill(s.daemon)
	if used, err := simgpu.ProcessMemory(sim, 0); err != nil || len(used) > 0 {
		t.Errorf("all processes are gone, and have %v, %v; want none", used, err)
	}
}

// modelsAt returns all models of a daemon.
func modelsAt(t *testing.T, socket string) []wire.Status {
	t.Helper()
	c, err := modeld.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, err := c.Models(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestOneCopy: eight instances and the daemon share one copy of a model's weights. A ninth instance gets them without
// a load.
func TestOneCopy(t *testing.T) {
	libs, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "copy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sim := filepath.Join(dir, "sim")
	if err := os.Mkdir(sim, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, dir: dir, draw: splitmix.Source(1), outputs: map[*exec.Cmd]*output{}}
	s.env = append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_STATE="+filepath.Join(dir, "state.db"),
		"GFAAS_LIB_DIR="+libs, "GFAAS_SIM_DIR="+sim, "GFAAS_SIM_GPU=mem=1GiB,context=0", "XDG_CONFIG_HOME="+dir)
	path := s.model("a")
	s.startDaemon()
	defer func() {
		for cmd := range s.outputs {
			s.kill(cmd)
		}
	}()
	for n := 1; n <= 9; n++ {
		cmd := s.start("model-instance", "a", path)
		for end := time.Now().Add(patience); !s.outputs[cmd].contains("good"); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("instance %d has no model after %v, want one: %s", n, patience, &s.outputs[cmd].text)
			}
		}
	}
	now := s.mustCall(wire.Request{Op: wire.OpStat}).Daemon
	if now.Loads != 1 || now.Refs != 9 {
		t.Errorf("counts of the daemon: got %+v, want Loads 1 and Refs 9", now)
	}
	memory, err := simgpu.ProcessMemory(sim, 0)
	if err != nil {
		t.Fatal(err)
	}
	sum := gpu.Bytes(0)
	for _, n := range memory {
		sum += n
	}
	if sum != gpu.Bytes(now.Used) || len(memory) != 10 {
		t.Errorf("GPU memory: got %v in %d processes, want the model's %v in 10", sum, len(memory), gpu.Bytes(now.Used))
	}
}
