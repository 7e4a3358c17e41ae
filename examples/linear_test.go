package examples_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestLinearServed checks that the Python function answers behind the gateway. Its
// weights are loaded once, by the daemon that the gateway starts, and are not in any
// instance's memory.
func TestLinearServed(t *testing.T) {
	const rows, columns = 300, 50
	dir, err := os.MkdirTemp("", "lin") // sockets' paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	env := append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_STATE="+filepath.Join(dir, "state.db"),
		"GFAAS_SIM_DIR="+filepath.Join(dir, "sim"), "GFAAS_LIB_DIR="+built(t, "lib"), "XDG_CONFIG_HOME="+dir, "PYTHONDONTWRITEBYTECODE=1")
	command := func(name string, args ...string) *exec.Cmd {
		if name != "python3" && name != "cp" {
			name = built(t, "bin", name)
		}
		cmd := exec.Command(name, args...)
		cmd.Env, cmd.Dir = env, dir
		return cmd
	}
	run := func(name string, args ...string) []byte {
		t.Helper()
		text, err := command(name, args...).Output()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, text)
		}
		return text
	}
	run("cp", "-r", built(t, "examples", "linear")+"/.", dir)
	run("python3", "make_weights.py", "linear.safetensors", fmt.Sprint(rows), fmt.Sprint(columns))
	run("gfaas", "apply", "-f", "function.yaml")
	var said bytes.Buffer
	serve := command("gfaas", "serve", "--listen", "", "--gpu", "sim", "--queue-timeout", "2m")
	serve.Stderr = &said
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(os.Interrupt)
		if err := serve.Wait(); err != nil || t.Failed() {
			t.Errorf("gfaas serve: %v\n%s", err, said.String())
		}
		_ = command("gfaas", "down").Run()
	})
	x := make([]float64, columns)
	for j := range x {
		x[j] = float64(j) / 4
	}
	body, err := json.Marshal(map[string]any{"x": x})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Y []float64 }
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		call := command("gfaas", "invoke", "linear")
		call.Stdin = bytes.NewReader(body)
		text, err := call.Output()
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v: %s", err, text)
		}
	}
	if len(got.Y) != rows {
		t.Fatalf("%d numbers, want %v", len(got.Y), rows)
	}
	for i, y := range got.Y {
		want := float64(i)
		for j := range x {
			want += float64((i+j)%7) * x[j]
		}
		if math.Abs(y-want) > 1e-5*want {
			t.Fatalf("y[%d] is %v, not %v", i, y, want)
		}
	}
	var models []struct {
		Name, State string
		Loads, Refs int
	}
	if err := json.Unmarshal(run("gfaas-modeld", "ls", "-o", "json"), &models); err != nil || len(models) != 1 ||
		models[0].State != "gpu" || models[0].Loads != 1 || models[0].Refs < 1 {
		t.Errorf("%+v, %v", models, err)
	}
}
