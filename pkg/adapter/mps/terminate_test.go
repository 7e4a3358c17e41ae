package mps_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
)

// PIDs of servers, beyond the range of real PIDs.
const server, another = 4<<20 + 1, 4<<20 + 2

// client starts a program in an environment and returns its PID when it is ready.
func client(t *testing.T, env []string, program string, args ...string) int {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(cmd.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestTerminate(t *testing.T) {
	program := mpstest.Client(t)
	for name, c := range map[string]struct {
		servers  []int
		private  bool // the daemon is the run directory's …
		owners   bool // … or the administrator's …
		named    bool // … or the one in the client's environment
		outsider bool // the process has not loaded the driver
		want     []int
	}{
		"private daemon":               {servers: []int{server}, private: true, want: []int{server}},
		"owner's daemon":               {servers: []int{server}, owners: true, want: []int{server}},
		"daemon of the environment":    {servers: []int{server}, named: true, want: []int{server}},
		"the same, named in all ways":  {servers: []int{server}, private: true, owners: true, named: true, want: []int{server}},
		"several servers":              {servers: []int{server, another}, private: true, want: []int{server, another}},
		"no server yet":                {private: true},
		"another daemon":               {servers: []int{server}},
		"process without the driver":   {servers: []int{server}, private: true, outsider: true},
		"environment, without driver":  {servers: []int{server}, named: true, outsider: true},
		"owner's daemon without a use": {servers: []int{server}, owners: true, outsider: true},
	} {
		t.Run(name, func(t *testing.T) {
			mpstest.Install(t)
			runDir, env := t.TempDir(), []string(nil)
			pipeDir := mps.PipeDir(runDir)
			if !c.private {
				runDir = t.TempDir()
			}
			owners := t.TempDir()
			if c.owners {
				owners = pipeDir
			}
			t.Setenv("CUDA_MPS_PIPE_DIRECTORY", owners)
			env = append(env, "CUDA_MPS_PIPE_DIRECTORY=")
			if c.named {
				env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+pipeDir)
			}
			mpstest.Start(t, pipeDir, c.servers...)
			pid := client(t, env, program)
			if c.outsider {
				pid = client(t, env, "sh", "-c", "echo ready; read x")
			}
			if err := mps.Terminate(t.Context(), runDir, []int{pid}); err != nil {
				t.Error(err)
			}
			var want []string
			for _, server := range c.want {
				want = append(want, fmt.Sprint(server, " ", pid))
			}
			if got := mpstest.Terminated(t, pipeDir); !slices.Equal(got, want) {
				t.Errorf("terminated %q, want %q", got, want)
			}
		})
	}
}

// Clients that are killed together are in one command; an ended client is not.
func TestTerminateSeveral(t *testing.T) {
	mpstest.Install(t)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir())
	runDir, program := t.TempDir(), mpstest.Client(t)
	pipeDir := mps.PipeDir(runDir)
	mpstest.Start(t, pipeDir, server)
	pids := []int{client(t, nil, program), 4<<20 + 3, client(t, nil, program)}
	if err := mps.Terminate(t.Context(), runDir, pids); err != nil {
		t.Error(err)
	}
	want := []string{fmt.Sprint(server, " ", pids[0]), fmt.Sprint(server, " ", pids[2])}
	if got := mpstest.Terminated(t, pipeDir); !slices.Equal(got, want) {
		t.Errorf("terminated %q, want %q", got, want)
	}
}

// A control daemon that hangs does not keep processes alive.
func TestTerminateHangs(t *testing.T) {
	mpstest.Install(t)
	mps.SetTerminateTime(t, 100*time.Millisecond)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir())
	runDir := t.TempDir()
	mpstest.Start(t, mps.PipeDir(runDir), server)
	mpstest.Slow(t, mps.PipeDir(runDir), 20*time.Second)
	if err := mps.Terminate(t.Context(), runDir, []int{client(t, nil, mpstest.Client(t))}); err == nil {
		t.Error("Terminate with a daemon that does not answer: got no error, want one")
	}
	if got := mpstest.Terminated(t, mps.PipeDir(runDir)); len(got) > 0 {
		t.Errorf("terminated %q, want none", got)
	}
}
