package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestAPIClients calls a gateway through the official clients of OpenAI, Anthropic and Ollama (apiclients). The
// function is a stand-in for a model server, on the simulated GPU.
func TestAPIClients(t *testing.T) {
	if os.Getenv("GFAAS_API_CLIENTS") == "" {
		t.Skip("GFAAS_API_CLIENTS is not set: make api-clients sets it")
	}
	needPython(t)
	program := filepath.Join(t.TempDir(), "apiclients")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "apiclients"
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build apiclients: %v\n%s", err, text)
	}
	standIn, err := filepath.Abs(filepath.Join("apiclients", "standin.py"))
	if err != nil {
		t.Fatal(err)
	}
	u := newUser(t)
	u.do("gfaas", "new", "chat", "--template", "openai", "-q")
	functions := fmt.Sprintf(`name: chat
command: [python3, %q]
env: {MODEL: chat, PYTHONPATH: %q, PYTHONDONTWRITEBYTECODE: "1"}
contract: openai
gpu_mem: 256MiB
inflight: 4
annotations: {capabilities: "completion, tools"}
---
name: broken
command: [sh, -c, "exit 7"]
contract: openai
`, standIn, filepath.Join(u.dir, "chat"))
	if err := os.WriteFile(filepath.Join(u.dir, "functions.yaml"), []byte(functions), 0o600); err != nil {
		t.Fatal(err)
	}
	u.do("gfaas", "apply", "-f", "functions.yaml") // first, so that the gateway lists the functions once it is ready
	address := fmt.Sprintf("127.0.0.1:%d", reserve(t))
	u.serve(address)
	text, err := exec.Command(program, "http://"+address).CombinedOutput()
	t.Logf("%s", text)
	if err != nil {
		t.Errorf("apiclients: %v", err)
	}
}
