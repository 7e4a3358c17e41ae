package gfaas

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/agent"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

// journal is the output of a program in the background.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(text)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// background starts a program, which the end of the test interrupts.
func (p *environment) background(program string, args ...string) *journal {
	p.t.Helper()
	j := &journal{}
	cmd := p.command(args...)
	cmd.Path, cmd.Args[0] = p.lookPath(program), program
	cmd.Stderr = j
	// The program ends when its standard input does.
	input, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = input.Close()
		_ = cmd.Wait()
		if p.t.Failed() {
			p.t.Logf("%s: %s", program, j)
		}
	})
	return j
}

// TestNodeAgent asks a real agent, at its real socket, about a real token daemon and a process on the simulated GPU.
func TestNodeAgent(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	built, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	sticky := filepath.Join(built, "check", "sticky")
	if _, err := exec.LookPath(sticky); err != nil {
		t.Fatalf("%v: run make checks first", err)
	}
	p.env = append(p.env, "GFAAS_LIB_DIR="+filepath.Join(built, "lib"), "GFAAS_SIM_GPU=mem=2GiB,count=2")
	p.write("grant.pub", p.output("grant", "keygen", "grant.key"))
	file, err := os.Open(filepath.Join(p.dir, "grant.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := grant.ReadPrivate(file, "grant.key")
	_ = file.Close()
	if err != nil {
		t.Fatal(err)
	}

	said := p.background("gfaas", "node", "agent", "--trust", "grant.pub", "--listen", "127.0.0.1:0")
	listens := regexp.MustCompile(`127\.0\.0\.1:[1-9][0-9]*`)
	eventually(t, "the agent listens", func() bool { return listens.MatchString(said.String()) })
	address := listens.FindString(said.String())
	client := agent.NewClient(key)
	defer client.Close()
	if _, err := client.Status(t.Context(), "n", address); err == nil || !strings.Contains(err.Error(), "no token daemon at") {
		t.Errorf("without a token daemon: %v", err)
	}

	p.background("gfaas-tokend", "--trust", "grant.pub", "--node", "n")
	eventually(t, "the token daemon serves", func() bool {
		_, err := client.Status(t.Context(), "n", address)
		return err == nil
	})
	p.background("gfaas", "run", "--gpu", "sim:1", "--name", "ill", "--", sticky, "226", "cuLaunchKernel", "wait")
	var faults []wire.InstanceFault
	eventually(t, "the fault of the process is reported", func() bool {
		faults, err = client.Faults(t.Context(), "n", address)
		return err != nil || len(faults) > 0
	})
	if err != nil || faults[0].Instance != "ill" || faults[0].GPU != "sim:1" || !faults[0].OfGPU() {
		t.Errorf("faults %+v, %v; want one of the GPU sim:1", faults, err)
	}
	s, err := client.Status(t.Context(), "n", address)
	if err != nil || s.Node != "n" || len(s.GPUs) != 1 || len(s.GPUs[0].Clients) != 1 || s.GPUs[0].Clients[0].Instance != "ill" {
		t.Errorf("status %+v, %v; want node n with a client on sim:1", s, err)
	}
	gpus, err := client.Devices(t.Context(), "n", address)
	if err != nil || len(gpus) != 2 || gpus[0].Total != 2<<30 || gpus[0].Free != gpus[0].Total || gpus[1].Free >= gpus[1].Total || len(gpus[1].Processes) != 1 {
		t.Errorf("GPUs %+v, %v; want two with 2 GiB, of which the first is free", gpus, err)
	}

	if _, err := client.Status(t.Context(), "m", address); err == nil || !strings.Contains(err.Error(), `for node "m", and this is node n`) {
		t.Errorf("for another node: %v", err)
	}
	stranger := agent.NewClient(grant.GenerateKey())
	defer stranger.Close()
	if _, err := stranger.Faults(t.Context(), "n", address); err == nil || !strings.Contains(err.Error(), "no trusted key has signed the request") {
		t.Errorf("signed by another key: %v", err)
	}
}
