package gfaas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/safetensors"
	"github.com/gfaas/gfaas/pkg/splitmix"
	"github.com/gfaas/gfaas/pkg/wire"
	modelwire "github.com/gfaas/gfaas/pkg/wire/model"
)

// weights writes a model with one tensor and returns its data.
func (p *environment) weights(name string, seed uint64) []byte {
	p.t.Helper()
	const n = 3 << 20
	data := make([]byte, n)
	from := splitmix.Source(seed)
	for i := range data {
		data[i] = byte(from.Uint64())
	}
	text, err := safetensors.AppendHeader(nil, []safetensors.Tensor{{Name: "w", DType: "U8", Shape: []int64{n}, Bytes: n}}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(name, string(append(text, data...)))
	return data
}

// program runs another program of gfaas, which must succeed, and parses its JSON output.
func (p *environment) program(out any, args ...string) {
	p.t.Helper()
	cmd := exec.Command(args[0], append(args[1:], "-o", "json")...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		p.t.Fatalf("run %v: %v\n%s", args, err, text)
	}
}

// models returns the model daemon's models by name.
func (p *environment) models() map[string]modelwire.Status {
	p.t.Helper()
	var all []modelwire.Status
	p.program(&all, "gfaas-modeld", "ls")
	by := map[string]modelwire.Status{}
	for _, m := range all {
		by[m.Name] = m
	}
	return by
}

// readModel makes a function answer with the first tensor of a model, or with an error, and returns the answer.
func (p *environment) readModel(function, model string) []byte {
	p.t.Helper()
	cmd := p.command("invoke", function, "-H", "X-Model: "+model)
	text, err := cmd.Output()
	if status := exitStatus(err); status != 0 && status != 1 { // 1: the function reports an error
		p.t.Fatalf("invoke %s: %v\n%s", function, err, text)
	}
	return text
}

// TestModelOnDocker checks that containers of functions with a model map a single copy of its weights, under gfaas up and
// under gfaas serve. Containers of another tenant or without a model must have no access to it.
func TestModelOnDocker(t *testing.T) {
	t.Parallel()
	p := newDockerEnvironment(t)
	real, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "GFAAS_LIB_DIR="+real)
	image := importImage(t, p)
	shared, own := p.weights("shared.safetensors", 1), p.weights("own.safetensors", 2)
	p.write("f.yaml", fmt.Sprintf(`{name: boxed, image: %[1]s, tenant: blue, gpu_mem: 2MiB, model: {name: shared, file: shared.safetensors}}
---
{name: other, image: %[1]s, tenant: green, model: {name: own, file: own.safetensors}}
---
{name: plain, image: %[1]s, tenant: blue}
`, image))
	p.output("apply", "-f", "f.yaml")
	check := func() {
		t.Helper()
		for range 3 {
			if got := p.readModel("boxed", "shared"); !bytes.Equal(got, shared) {
				t.Errorf("model shared read by boxed: got %d bytes %.100q, want the %d bytes of the file", len(got), got, len(shared))
			}
		}
		if got := p.readModel("other", "own"); !bytes.Equal(got, own) {
			t.Errorf("model own read by other: got %d bytes %.100q, want the %d bytes of the file", len(got), got, len(own))
		}
		for _, c := range []struct{ function, model, says string }{
			{"other", "shared", "1 there is no model shared"},
			{"boxed", "own", "1 there is no model own"},
			{"plain", "shared", "libgfaas-model.so: cannot open"},
		} {
			if got := p.readModel(c.function, c.model); !strings.HasPrefix(string(got), c.says) {
				t.Errorf("model %s read by %s: got %.100q, want %s", c.model, c.function, got, c.says)
			}
		}
		all := p.models()
		if s, o := all["shared"], all["own"]; s.Loads != 1 || s.Refs < 1 || s.Tenant != "blue" || o.Loads != 1 || o.Tenant != "green" {
			t.Errorf("models: got %+v, want shared of blue with a holder and own of green, each loaded once", all)
		}
		// The weights count as the model's memory, not as the memory of the instances that map them.
		var status wire.Status
		p.program(&status, "gfaas-tokend", "status")
		mapped := 0
		for _, g := range status.GPUs {
			for _, c := range g.Clients {
				if c.Function != "plain" && c.MemImportedMiB > 0 {
					mapped++
				}
				if c.MemUsedMiB != 0 {
					t.Errorf("GPU memory of the instance %s itself: got %v MiB, want 0", c.Instance, c.MemUsedMiB)
				}
			}
		}
		if mapped < 2 {
			t.Errorf("instances that have mapped a model: got %d, want at least 2: %+v", mapped, status)
		}
	}
	p.write("plan.json", planOf("boxed-0", "boxed-1", "other-0", "plain-0"))
	p.output("up", "plan.json")
	check()
	if refs := p.models()["shared"].Refs; refs < 2 {
		t.Errorf("holders of the model shared: got %d, want at least 2", refs)
	}
	p.output("down")
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after down: got %d, want 0", n)
	}
	// The daemon ends when it is idle, and its models with it.
	eventually(t, "no instance holds a model", func() bool {
		cmd := exec.Command("gfaas-modeld", "stat", "-o", "json")
		cmd.Env = append(os.Environ(), p.env...)
		text, err := cmd.Output()
		return exitStatus(err) == 4 || strings.Contains(string(text), `"refs": 0`)
	})

	serve := p.command("serve", "--listen", "", "--gpu", "sim", "--queue-timeout", "1m")
	var stderr bytes.Buffer
	serve.Stderr = &stderr
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = serve.Process.Signal(os.Interrupt)
		if err := serve.Wait(); err != nil {
			t.Errorf("gfaas serve: %v\n%s", err, stderr.String())
		}
		if n := containers(t, image); n != 0 {
			t.Errorf("containers after the end of the gateway: got %d, want 0", n)
		}
	}()
	if !poll(func() bool { return p.command("invoke", "boxed").Run() == nil }) {
		t.Fatalf("the gateway does not answer\n%s", stderr.String())
	}
	check()
}
